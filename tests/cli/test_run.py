"""`run`, and what all commands share: where output goes, errors, exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.fakes import FakeLLM

from satchel.base.errors import ContextLengthError, TemplateError


def test_tokens_go_to_stdout_and_timings_to_stderr(llm: FakeLLM, call: Call) -> None:
    llm.answers = [["The sky", " is", " blue."]]
    done = call("run", "m", "Why?", "-c", "512", "-t", "2")
    assert (done.code, done.out) == (0, "The sky is blue.\n")
    assert done.err == (
        "prompt 7 tokens, 700.0 tokens/s | first token 12 ms | "
        "answer 3 tokens, 50.2 tokens/s | stop\n"
    )
    expected = {"model": "m", "context": 512, "threads": 2, "parallel": 1, "prefix_cache": True}
    assert expected.items() <= llm.loaded.items()
    assert llm.asked == [("chat", [{"role": "user", "content": "Why?"}])]


def test_what_is_kept_is_said(llm: FakeLLM, call: Call) -> None:
    llm.answers = [["Yes."]]
    call("run", "m", "Why?", "--no-prefix-cache")
    assert llm.loaded["prefix_cache"] is False


def test_raw_and_system_prompts(llm: FakeLLM, call: Call) -> None:
    assert call("run", "m", "2, 3,", "--raw", "-q").err == ""
    assert llm.asked == [("raw", "2, 3,")]
    call("run", "m", "Hi", "-sys", "Be brief.")
    assert llm.asked[-1][1][0] == {"role": "system", "content": "Be brief."}
    assert call("run", "m", "Hi", "-sys", "Be brief.", "--raw").code == 2


def test_the_prompt_from_stdin_or_a_file(llm: FakeLLM, call: Call, tmp_path: Path) -> None:
    call("run", "m", stdin="Grüße\n\n".encode())
    path = tmp_path / "p.txt"
    path.write_text("from a file", encoding="utf-8")
    call("run", "m", "-f", str(path))
    assert [asked[1][0]["content"] for asked in llm.asked] == ["Grüße\n", "from a file"]
    for argv, stdin in ((("-f", "none"), b""), ((), b"\xff"), (("x", "-f", str(path)), b"")):
        failed = call("run", "m", *argv, stdin=stdin)
        assert failed.code == 2
        assert failed.err.startswith("satchel: error: ")
        assert failed.err.count("\n") == 1
    assert len(llm.asked) == 2


def test_an_answer_that_ends_its_line_gets_no_second_one(llm: FakeLLM, call: Call) -> None:
    llm.answers = [["one\n", ""]]
    assert call("run", "m", "x").out == "one\n"


def test_errors_are_one_line_and_a_code(llm: FakeLLM, call: Call) -> None:
    llm.answers = [[ContextLengthError("the prompt is too long")], [KeyboardInterrupt()]]
    failed = call("run", "m", "x")
    assert (failed.code, failed.err) == (1, "satchel: error: the prompt is too long\n")
    assert call("run", "m", "x").code == 130
    assert llm.streams[-1].closed
    assert call("run", "m", "x", "--top-k", "no").code == 2
    assert call().code == 2


def test_a_model_without_a_template(llm: FakeLLM, call: Call) -> None:
    llm.refusal = TemplateError("it has no chat template; complete a plain prompt instead")
    failed = call("run", "m", "x")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err.endswith("a plain prompt instead; --raw does without the template\n")


def test_a_mistyped_variable_is_told(
    llm: FakeLLM, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_TOPK", "3")
    assert "SATCHEL_TOPK is set, and nothing reads it" in call("run", "m", "x").err


def test_version(call: Call) -> None:
    assert call("--version").out.startswith("satchel 0.")


def satchel(*argv: str, **named: object) -> subprocess.Popen[bytes]:
    code = "import sys; from satchel.cli.main import main; sys.exit(main())"
    return subprocess.Popen([sys.executable, "-c", code, *argv], stderr=-1, **named)  # type: ignore[call-overload]


def test_a_reader_that_goes_away_is_no_error() -> None:
    read, write = os.pipe()
    os.close(read)
    process = satchel("--version", stdout=write)
    os.close(write)
    assert process.communicate(timeout=300)[1] == b""
    assert process.returncode == 141


def test_output_that_can_not_be_written() -> None:
    with open("/dev/full", "w") as full:
        process = satchel("--version", stdout=full)
    assert process.communicate(timeout=300)[1] == (
        b"satchel: error: the output: No space left on device\n"
    )
    assert process.returncode == 1


def test_a_closed_stdout() -> None:
    process = satchel("--version", stdout=-1, preexec_fn=lambda: os.close(1))
    assert process.communicate(timeout=300)[1].startswith(b"satchel: error: stdout is closed;")
    assert process.returncode == 2


def test_a_package_that_can_not_be_loaded(
    llm: FakeLLM, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm.refusal = ImportError("no room for it")
    failed = call("run", "m", "x")
    assert (failed.code, failed.out) == (1, "")
    assert failed.err == "satchel: error: can't load what satchel needs: no room for it\n"


def test_a_model_that_is_not_there() -> None:
    process = satchel("show", "/no/such.gguf", stdout=-1)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, b"")
    assert err.startswith(b"satchel: error: /no/such.gguf: no such file")
    assert err.count(b"\n") == 1
