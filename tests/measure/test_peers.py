"""The comparison with llama.cpp, whose bench program is played by a script."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.measure.tiny import write_tiny

PEERS = Path(__file__).parents[2] / "bench" / "peers.py"
FAKE = f"""#!{sys.executable}
import json, sys
flags = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open(__file__ + ".log", "a") as log:
    log.write(json.dumps(flags) + "\\n")
print(json.dumps([{{"avg_ts": 100.0 if flags["-n"] == "0" else 50.0}}]))
"""


def run(*words: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PEERS), *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)


@pytest.fixture
def llama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PYTHONPATH", str(PEERS.parents[1] / "src"))
    program = tmp_path / "llama-bench"
    program.write_text(FAKE)
    program.chmod(0o755)
    return program


@pytest.mark.slow
def test_rounds_in_turns(llama: Path, tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf")
    sizes = ["-p", "16", "-n", "4", "-d", "32", "-t", "1", "-r", "3"]
    done = run("--llama-bench", str(llama), str(model), *sizes, tmp_path=tmp_path)
    assert done.returncode == 0, done.stderr
    pp, tg = map(json.loads, done.stdout.splitlines())
    assert (pp["test"], tg["test"]) == ("pp16 @ d32", "tg4 @ d32")
    assert (pp["llama_cpp_tokens_per_s"], tg["llama_cpp_tokens_per_s"]) == (100, 50)
    for line in (pp, tg):
        assert len(line["satchel_all"]) == line["rounds"] == 3
        fraction = line["satchel_tokens_per_s"] / line["llama_cpp_tokens_per_s"]
        assert line["ratio"] == pytest.approx(fraction, rel=1e-3)
    asked = [json.loads(line) for line in Path(f"{llama}.log").read_text().splitlines()]
    assert [(a["-p"], a["-n"]) for a in asked] == [("16", "0"), ("0", "4")] * 3
    assert all((a["-d"], a["-t"], a["-fa"]) == ("32", "1", "1") for a in asked)


@pytest.mark.slow
def test_what_does_not_work(llama: Path, tmp_path: Path) -> None:
    missing = run("--llama-bench", "none", tmp_path=tmp_path)
    assert missing.returncode == 2
    assert "none is not a file" in missing.stderr
    broken = tmp_path / "broken"
    broken.write_text(f"#!{sys.executable}\nimport sys; sys.exit('no such flag')\n")
    broken.chmod(0o755)
    model = write_tiny(tmp_path / "tiny.gguf")
    words = [str(model), "-p", "8", "-n", "0", "-r", "1", "-t", "1"]
    done = run("--llama-bench", str(broken), *words, tmp_path=tmp_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert "failed on" in done.stderr
    assert "no such flag" in done.stderr
    unknown = run("--llama-bench", str(llama), "nosuchmodel", tmp_path=tmp_path)
    assert unknown.returncode == 1
    assert unknown.stderr.startswith("peers: error: ")
