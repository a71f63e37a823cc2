"""`satchel serve` as a process: it begins, is idle, ends on a signal with code 0."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from satchel.cli.main import main, parse

COMMAND = [sys.executable, "-c", "import sys; from satchel.cli.main import main; sys.exit(main())"]


class Process:
    """A running server, what it logged, where it listens."""

    def __init__(self, *args: str) -> None:
        self.child = subprocess.Popen(
            [*COMMAND, "serve", *args, "--port", "0", "--log-json", "-c", "1024"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[dict[str, Any]] = []
        assert self.child.stderr
        for line in self.child.stderr:
            self.lines.append(json.loads(line))
            if self.lines[-1]["event"] == "ready":
                break
        self.url = str(self.lines[-1]["url"])

    def end(self, number: int) -> int:
        """Sends a signal; the exit code. All further lines are read."""
        self.child.send_signal(number)
        out, err = self.child.communicate(timeout=300)
        assert out == ""  # the log goes to stderr
        self.lines += [json.loads(line) for line in err.splitlines()]
        return self.child.returncode

    def cpu_s(self) -> float:
        """The processor time that it used until now, in seconds."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def switches(self) -> int:
        """How often any of its threads was woken."""
        tasks = Path(f"/proc/{self.child.pid}/task").glob("*/status")
        lines = [line for task in tasks for line in task.read_text("ascii").splitlines()]
        return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


@contextmanager
def process(*args: str) -> Generator[Process]:
    server = Process(*args)
    try:
        yield server
    finally:
        server.child.kill()
        server.child.wait()


def complete(server: Process, **fields: Any) -> httpx.Response:
    body = {"prompt": "Once upon a time", "temperature": 0, **fields}
    return httpx.post(f"{server.url}/v1/completions", json=body, timeout=300)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_answers_finish_and_ends_with_0(smollm2: Path, number: int) -> None:
    with process(str(smollm2)) as server:
        found: list[httpx.Response] = []
        asks = threading.Thread(
            target=lambda: found.append(complete(server, max_tokens=200, ignore_eos=True))
        )
        asks.start()
        while httpx.get(f"{server.url}/sessions").json() == []:
            time.sleep(0.01)
        assert server.end(number) == 0
        asks.join()
        assert found[0].json()["usage"]["completion_tokens"] == 200
        events = [line["event"] for line in server.lines]
        assert events[-2:] == ["unloaded", "ended"]
        assert "fault" not in events


def test_grace_has_an_end(smollm2: Path) -> None:
    with process(str(smollm2), "--grace", "1") as server:
        client = httpx.Client(timeout=300)
        body = {"prompt": "Once", "max_tokens": 1000, "ignore_eos": True, "stream": True, "n": 8}
        with client.stream("POST", f"{server.url}/v1/completions", json=body) as stream:
            next(stream.iter_lines())
            begun = time.monotonic()
            assert server.end(signal.SIGTERM) == 0
            assert time.monotonic() - begun < 20  # all answers take minutes


def test_an_idle_server_uses_no_processor(smollm2: Path) -> None:
    with process(str(smollm2)) as server:
        assert complete(server, max_tokens=8).status_code == 200
        for _ in range(5):  # what is left to do after an answer may come late on a busy machine
            time.sleep(0.5)
            before, woken = server.cpu_s(), server.switches()
            time.sleep(2)
            took, woken = server.cpu_s() - before, server.switches() - woken
            if took <= 0.01 and woken <= 3:  # a tick of the clock that counts
                break
        assert (took <= 0.01, woken <= 3) == (True, True), (took, woken)


def test_flags_reach_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from satchel.serve import run

    seen: dict[str, Any] = {}

    def fake(references: Any, settings: Any, load: Any) -> int:
        seen.update(references=references, settings=settings, load=load.keywords)
        return 0

    monkeypatch.setattr(run, "serve", fake)
    monkeypatch.setenv("SATCHEL_API_KEY", "from-env")
    words = (
        "serve a.gguf b.gguf --host 0.0.0.0 --port 81 --cors-origin https://x.y -np 3 -c 77 -t 2 "
        "--max-requests 5 --max-loaded 1 --keep-alive -1 --pooling last --grace 3 --log-json "
        "--disk-cache 3M"
    )
    assert main(words.split()) == 0
    assert seen["references"] == ["a.gguf", "b.gguf"]
    load = seen["load"]
    assert (load["context"], load["threads"], load["parallel"]) == (77, 2, 3)
    assert load["disk_cache"] == 3 << 20
    found = seen["settings"]
    assert (found.host, found.port, found.api_key) == ("0.0.0.0", 81, "from-env")
    assert (found.cors_origins, found.max_requests, found.max_loaded) == (("https://x.y",), 5, 1)
    assert (found.keep_alive_s, found.grace_s, found.log_json) == (None, 3, True)
    assert found.pooling == "last"
    assert not found.insecure


@pytest.mark.parametrize(("word", "seconds"), [("90", 90), ("1h30m", 5400), ("-1m", -1), ("0", 0)])
def test_keep_alive_is_a_time(word: str, seconds: float) -> None:
    assert parse(["serve", f"--keep-alive={word}"]).keep_alive == seconds


def test_models_may_be_none_one_or_many() -> None:
    assert parse(["serve"]).models == []
    assert parse(["serve", "-m", "a", "b", "c"]).models == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("serve --host 0.0.0.0", "--api-key"),
        ("serve --cors-origin x", "--cors-origin"),
        ("serve --port 70000", "--port"),
        ("serve no-such-model.gguf", "no such file"),
        ("serve --host 203.0.113.7 --insecure", "can't listen"),
    ],
)
def test_what_cannot_be_served(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) in (1, 2)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_port_that_is_taken(capsys: pytest.CaptureFixture[str]) -> None:
    from satchel.serve.run import listen
    from satchel.serve.settings import Settings

    with listen(Settings(port=0)) as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    assert "choose another by --port" in capsys.readouterr().err


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    def test_a_model_without_room_is_refused_and_the_others_answer(
        smollm2: Path, tmp_path: Path
    ) -> None:
        import resource

        for name in ("a.gguf", "b.gguf"):
            (tmp_path / name).symlink_to(smollm2)
        with process(str(tmp_path / "a.gguf"), str(tmp_path / "b.gguf")) as server:
            first = complete(server, max_tokens=8).json()["choices"]
            status = Path(f"/proc/{server.child.pid}/status").read_text("ascii")
            now = next(
                int(row.split()[1]) for row in status.splitlines() if row.startswith("VmData")
            )
            most = (now << 10) + (100 << 20)
            resource.prlimit(server.child.pid, resource.RLIMIT_DATA, (most, most))
            for _ in range(2):
                refused = complete(server, model="b", max_tokens=8)
                assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
                assert refused.json()["error"]["code"] == "out_of_memory"
                assert complete(server, model="a", max_tokens=8).json()["choices"] == first
            assert server.end(signal.SIGTERM) == 0
            assert "fault" not in [line["event"] for line in server.lines]
