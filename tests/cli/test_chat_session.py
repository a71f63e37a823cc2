"""`chat --session NAME`: a conversation that goes on whenever it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.test_api import make

import satchel

HELLO = b"Tell me of the river, the stone, the lantern and the winter music.\n"
CHAT = ("chat", "m", "--session", "trip", "--temp", "0", "-n", "8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where conversations are kept; models are made anew each time."""

    def load(*_: Any, **__: Any) -> satchel.LLM:
        return make(context_length=1024, n_pages=64)

    monkeypatch.setitem(vars(satchel), "load", load)
    monkeypatch.setenv("SATCHEL_DATA", str(tmp_path / "data"))
    return tmp_path / "data" / "sessions"


def messages(folder: Path, name: str = "trip") -> list[dict[str, str]]:
    return json.loads((folder / f"{name}.json").read_text("utf-8"))["messages"]


def test_it_goes_on_by_itself(folder: Path, call: Call) -> None:
    first = call(*CHAT, "-sys", "Be kind.", stdin=HELLO)
    assert (first.code, [m["role"] for m in messages(folder)]) == (
        0,
        ["system", "user", "assistant"],
    )
    assert sorted(path.name for path in folder.iterdir()) == ["trip.json", "trip.json.kv"]
    second = call(*CHAT, stdin=b"And?\n/stats\n")
    assert "trip goes on: 3 messages until now" in second.err
    assert [m["role"] for m in messages(folder)][3:] == ["user", "assistant"]
    assert messages(folder)[0]["content"] == "Be kind."
    both = call(*CHAT[:2], *CHAT[4:], "-sys", "Be kind.", stdin=HELLO + b"And?\n")
    assert first.out + second.out == both.out, "as if it had never stopped"


def test_messages_are_there_after_each_answer(folder: Path, call: Call) -> None:
    call(*CHAT, stdin=HELLO + b"/exit\n")
    call(*CHAT, stdin=b"/reset\n")
    assert messages(folder) == []


def test_names_have_conversations_of_their_own(folder: Path, call: Call) -> None:
    call(*CHAT, stdin=HELLO)
    assert "goes on" not in call("chat", "m", "--session", "other", stdin=b"Hi\n").err
    assert len(messages(folder)) == len(messages(folder, "other")) == 2


@pytest.mark.parametrize("name", ["../evil", "a/b", ".hidden", "", "a b", "x" * 101])
def test_names_that_are_paths_are_refused(folder: Path, call: Call, name: str) -> None:
    done = call("chat", "m", f"--session={name}", stdin=b"Hi\n")
    assert done.code == 2
    assert "--session" in done.err
    assert not list(folder.parent.glob("**/*.json"))


def test_another_system_prompt_is_refused(folder: Path, call: Call) -> None:
    call(*CHAT, "-sys", "Be kind.", stdin=HELLO)
    done = call(*CHAT, "-sys", "Be rude.", stdin=HELLO)
    assert done.code == 2
    assert "--system-prompt" in done.err
    assert len(messages(folder)) == 3


def test_a_file_that_is_no_conversation_is_left_alone(folder: Path, call: Call) -> None:
    folder.mkdir(parents=True)
    (folder / "trip.json").write_text("mine")
    done = call(*CHAT, stdin=HELLO)
    assert done.code == 1
    assert "is not a saved conversation" in done.err
    assert (folder / "trip.json").read_text() == "mine"
