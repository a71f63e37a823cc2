"""Speed beside a busy program: both engines, alone and in company, in turns."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.measure.test_peers import FAKE
from tests.measure.tiny import write_tiny

MANNERS = Path(__file__).parents[2] / "bench" / "manners.py"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(MANNERS), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(MANNERS.parents[1] / "src"))


@pytest.mark.slow
def test_both_engines_in_turns(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf")
    llama = tmp_path / "llama-bench"
    llama.write_text(FAKE)
    llama.chmod(0o755)
    done = run(str(model), "--llama-bench", str(llama), "-n", "4", "-t", "2", "-r", "3")
    assert done.returncode == 0, done.stderr
    ours, theirs = map(json.loads, done.stdout.splitlines())
    assert (ours["engine"], theirs["engine"]) == ("satchel", "llama.cpp")
    for line in (ours, theirs):
        assert len(line["alone_all"]) == len(line["beside_all"]) == line["rounds"] == 3
        fraction = line["beside_tokens_per_s"] / line["alone_tokens_per_s"]
        assert line["ratio"] == pytest.approx(fraction, abs=1e-3)
    assert theirs["ratio"] == 1
    asked = [json.loads(line) for line in Path(f"{llama}.log").read_text().splitlines()]
    assert [(a["-n"], a["-t"]) for a in asked] == [("4", "2")] * 6


@pytest.mark.slow
def test_ours_alone(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf")
    done = run(str(model), "-n", "2", "-t", "1", "-r", "1")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["engine"] == "satchel"


@pytest.mark.slow
def test_what_does_not_work() -> None:
    missing = run("--llama-bench", "none")
    assert missing.returncode == 2
    assert "none is not a file" in missing.stderr
    unknown = run("nosuchmodel")
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("manners: error: ")
