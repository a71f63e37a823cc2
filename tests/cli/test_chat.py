"""`chat` from a pipe, by keystrokes in a real terminal, and its commands."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.cli.conftest import Call
from tests.cli.fakes import FakeLLM

from satchel.base.errors import ContextLengthError


def said(llm: FakeLLM) -> list[str]:
    return [asked for kind, asked in llm.asked if kind == "send"]


def test_each_line_of_a_pipe_is_a_message(llm: FakeLLM, call: Call) -> None:
    llm.answers = [["Hello", "!"], ["Blue."]]
    done = call("chat", "m", "-sys", "Be kind.", "-q", stdin=b"Hi\n\nWhy?\n")
    assert (done.code, done.out, done.err) == (0, "Hello!\nBlue.\n", "")
    assert llm.asked[0] == ("session", "Be kind.")
    assert said(llm) == ["Hi", "Why?"]


def test_thoughts_are_no_part_of_the_answer(llm: FakeLLM, call: Call) -> None:
    llm.answers = [[("Hm", ""), (".", ""), ("", "Yes"), "!"]]
    done = call("chat", "m", "-q", stdin=b"Hi\n")
    assert (done.out, done.err) == ("Yes!\n", "Hm.\n\n")


def test_messages_of_many_lines(llm: FakeLLM, call: Call) -> None:
    text = b'one\\\ntwo\n"""three\n/four\n"""\n"""five"""\n"""six\n'
    assert call("chat", "m", stdin=text).code == 0
    assert said(llm) == ["one\ntwo", "three\n/four", "five", "six"]


def test_commands(llm: FakeLLM, call: Call, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    done = call("chat", "m", stdin=f"Hi\n/save {path}\n/stats\n/help\n/reset\n".encode())
    assert done.code == 0
    assert json.loads(path.read_text()) == ["Hi"]
    for line in ("1 messages", "/load FILE", "the conversation is forgotten"):
        assert line in done.err
    assert llm.messages == []
    assert done.out == "Yes.\n"


def test_errors_do_not_end_the_talk_but_show_in_the_code(llm: FakeLLM, call: Call) -> None:
    llm.answers = [[ContextLengthError("too long")], ["Fine."]]
    done = call("chat", "m", "-q", stdin=b"a\n/load none\n/nothing\n/save\nb\n/exit\nc\n")
    assert done.code == 1
    assert done.out == "Fine.\n"
    assert done.err.count("satchel: error:") == 4
    assert said(llm) == ["a", "b"]


TERMINAL = """
import signal, sys, time
import satchel
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from satchel.cli.main import main
from tests.cli.fakes import FakeLLM, FakeStream
class Slow(FakeStream):
    def __iter__(self):
        yield from super().__iter__()
        for _ in range(600):  # not in one: a signal just before a long sleep would wait for its end
            time.sleep(0.1)
llm = FakeLLM(["first"], ["second"])
satchel.load = llm.open
streams = [Slow(["begun"]), FakeStream(["done"])]
llm._stream = lambda *_: streams.pop(0)
sys.exit(main(["chat", "m", "-q"]))
"""


def is_asleep(pid: int) -> bool:
    """Whether a process waits for something."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, check=True)
    return state.stdout.startswith(b"S")


def test_ctrl_c_stops_the_answer_and_not_the_program(tmp_path: Path) -> None:
    leader, follower = pty.openpty()
    paths = os.pathsep.join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", TERMINAL],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": paths, "SATCHEL_CACHE": str(tmp_path), "TERM": "dumb"},
    )
    os.close(follower)

    seen = bytearray()  # and not waited for yet

    def wait_for(text: bytes) -> None:
        end = time.monotonic() + 120
        while text not in seen:
            assert time.monotonic() < end, seen
            if select.select([leader], [], [], 1)[0]:
                seen.extend(os.read(leader, 4096))
        del seen[: seen.index(text) + len(text)]

    try:
        wait_for(b"> ")
        os.write(leader, b"Hi\n")
        wait_for(b"begun")
        process.send_signal(signal.SIGINT)
        wait_for(b"> ")
        os.write(leader, b"Again\n")
        wait_for(b"done")
        wait_for(b"> ")
        while not is_asleep(process.pid):  # a signal just before it waits for a key would be late
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)  # at the prompt it throws away the line
        wait_for(b"> ")
        os.write(leader, b"/exit\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        os.close(leader)
    assert (tmp_path / "chat_history").read_text().splitlines() == ["Hi", "Again", "/exit"]
