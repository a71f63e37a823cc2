"""The command line with the real default model, in processes of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

COMMAND = [sys.executable, "-c", "import sys; from satchel.cli.main import main; sys.exit(main())"]
PATHS = {"PYTHONPATH": os.pathsep.join(sys.path)}


def satchel(*argv: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *argv],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, **PATHS},
    )


def test_an_answer_with_timings(smollm2: Path) -> None:
    words = ("run", str(smollm2), "--raw", "--temp", "0", "-n", "8")
    done = satchel(*words, "2, 4, 6, 8,")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(" 10, 12")
    assert done.stderr.count("\n") == 1
    for said in ("prompt 11 tokens", "answer 8 tokens", "tokens/s", "first token", "| length"):
        assert said in done.stderr
    assert satchel(*words, "-t", "1", stdin="2, 4, 6, 8,\n").stdout == done.stdout


def test_a_question_by_the_model_s_template(smollm2: Path) -> None:
    question = "What is the capital of France? Answer in one word."
    done = satchel("run", str(smollm2), question, "--temp", "0", "-n", "20")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout
    assert "<|im" not in done.stdout


def test_a_conversation_keeps_what_it_computed(smollm2: Path) -> None:
    done = satchel(
        "chat", str(smollm2), "--temp", "0", "-n", "20", stdin="Hi, I am Bo.\nWho am I?\n"
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) >= 2
    first, second = done.stderr.splitlines()
    assert "cached" not in first
    assert " cached)" in second


def test_bad_input_is_one_line(smollm2: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[: 10 << 20])
    for code, said, argv in (
        (1, "context", ("run", str(smollm2), "--raw", "word " * 300, "-c", "128")),
        (2, "context", ("run", str(smollm2), "Hi", "-c", "99999999")),
        (2, "no token", ("run", str(smollm2), "Hi", "--logit-bias", "99999999+1")),
        (1, "cut short", ("run", str(cut), "Hi")),
        (1, "no such file", ("run", str(tmp_path / "none.gguf"), "Hi")),
    ):
        failed = satchel(*argv)
        assert (failed.returncode, failed.stdout) == (code, ""), failed.stderr
        assert failed.stderr.startswith("satchel: error: ")
        assert failed.stderr.count("\n") == 1
        assert said in failed.stderr


def test_a_reader_that_stops_reading(smollm2: Path) -> None:
    argv = [*COMMAND, "run", str(smollm2), "1, 2, 3,", "--raw", "--ignore-eos", "-n", "500"]
    with subprocess.Popen(argv, stdout=-1, stderr=-1, env={**os.environ, **PATHS}) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141
