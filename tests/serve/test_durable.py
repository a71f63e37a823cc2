"""Real conversations outlive the server, and no one can tell but by the clock."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

import satchel
from satchel.base.options import child_environment, options
from satchel.files.caches import DERIVED

COMMAND = [sys.executable, "-c", "import sys; from satchel.cli.main import main; sys.exit(main())"]
WORDS = ("river", "stone", "lantern", "winter", "music", "garden", "paper", "silver", "engine")
N_TOKENS = 4000


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache with all that the user's own has, but for saved pages."""
    for name in ("models", *DERIVED):
        if name != "kv":
            (options().cache_dir / name).mkdir(parents=True, exist_ok=True)
            (tmp_path / name).symlink_to(options().cache_dir / name)
    return tmp_path


@contextmanager
def server(model: Path, cache: Path) -> Generator[tuple[str, subprocess.Popen[str]]]:
    """A server's address, and the server."""
    child = subprocess.Popen(
        [*COMMAND, "serve", str(model), "--port", "0", "-c", "4352", "-t", "2", "--log-json"],
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment({"SATCHEL_CACHE": str(cache)}),
    )
    assert child.stderr
    try:
        lines = (json.loads(line) for line in child.stderr)
        yield next(line["url"] for line in lines if line["event"] == "ready"), child
    finally:
        child.kill()
        child.wait()
        child.stderr.close()


def ask(url: str, prompt: list[int], n: int = 8) -> dict[str, Any]:
    """An answer in OpenAI's form, with how likely each token was, to the last bit."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "logprobs": 0}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()


def until_saved(cache: Path, n_files: int) -> None:
    """Waits until what has rested is on disk."""
    end = time.monotonic() + 120
    while len(list((cache / "kv").glob("*.kv"))) < n_files or list((cache / "kv").glob("*.part")):
        assert time.monotonic() < end, "it is never saved"
        time.sleep(0.05)


def text_of(url: str, n: int) -> list[int]:
    words = " ".join(WORDS[i * i % len(WORDS)] for i in range(n))
    tokens = httpx.post(f"{url}/tokenize", json={"content": words}, timeout=300).json()["tokens"]
    return tokens[:n]


def test_a_conversation_goes_on_after_kill_9(smollm2: Path, cache: Path) -> None:
    with server(smollm2, cache) as (url, child):
        prompt = text_of(url, N_TOKENS)
        first = ask(url, prompt)
        assert first["timings"]["prompt_n"] == N_TOKENS
        more = [*prompt, *text_of(url, 20)]
        expected = ask(url, more)["choices"]
        until_saved(cache, len(more) // 64)
        os.kill(child.pid, signal.SIGKILL)
    with server(smollm2, cache) as (url, _):
        again = ask(url, more)
    assert again["choices"] == expected
    assert again["timings"]["cache_n"] == len(more) // 64 * 64
    assert again["timings"]["prompt_ms"] < first["timings"]["prompt_ms"] / 3


def test_what_a_server_knows_is_saved_when_it_is_told_to_end(smollm2: Path, cache: Path) -> None:
    with server(smollm2, cache) as (url, child):
        prompt = text_of(url, 300)
        expected = ask(url, prompt)["choices"]
        child.terminate()
        assert child.wait(120) == 0
    with server(smollm2, cache) as (url, _):
        again = ask(url, prompt)
    assert again["choices"] == expected
    assert again["timings"]["cache_n"] == 256


def test_layers_with_windows_go_on_too(
    gemma3: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(cache))
    sampling: dict[str, Any] = {
        "max_tokens": 8, "temperature": 0, "ignore_eos": True, "logprobs": 0
    }  # fmt: skip
    with satchel.load(gemma3, context=2048, threads=2, parallel=1, disk_cache=1 << 30) as llm:
        prompt = llm.tokenize(" ".join(WORDS[i * i % len(WORDS)] for i in range(1500)))[:1500]
        first = llm.generate(prompt, **sampling)
        more = [*prompt, *first.tokens, *prompt[:20]]
        expected = llm.generate(more, **sampling)
    with satchel.load(gemma3, context=2048, threads=2, parallel=1, disk_cache=1 << 30) as llm:
        again = llm.generate(more, **sampling)
    assert (again.tokens, again.logprobs) == (expected.tokens, expected.logprobs)
    assert again.stats.cached_tokens == len(more) // 64 * 64
    assert again.stats.time_to_first_token_ms < first.stats.time_to_first_token_ms / 2
