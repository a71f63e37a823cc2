"""A conversation that was saved goes on, and is not computed again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.test_api import GREEDY, make

from satchel.api import LLM, Session
from satchel.base.errors import OptionError

LONG = "word " * 40


def fake(fingerprint: str = "fake", windows: tuple[int | None, ...] = (None,)) -> LLM:
    llm = make(context_length=1024, n_pages=64, windows=windows)
    llm._speaker.model.fingerprint = fingerprint  # type: ignore[misc]
    llm._speaker.engine.scheduler.pace.note = lambda *_: None  # type: ignore[method-assign]
    return llm


def send(session: Session, text: str) -> tuple[str, int, int]:
    """The answer, and how many tokens of the prompt were known, of how many."""
    answer = session.send(text, max_tokens=20, **GREEDY)
    return answer.text, answer.stats.cached_tokens, answer.stats.prompt_tokens


@pytest.mark.parametrize("windows", [(None,), (None, 100), (70,)])
def test_a_saved_conversation_goes_on_in_another_process(
    tmp_path: Path, windows: tuple[int | None, ...]
) -> None:
    path = tmp_path / "talk.json"
    with fake(windows=windows) as llm:
        session = llm.session("Be kind.")
        send(session, LONG)
        session.save(path)
        expected = send(session, "And?")
        assert send(session, "So?")[0] != expected[0]
    with fake(windows=windows) as later, later.session() as again:
        again.load(path)
        text, known, n_prompt = send(again, "And?")
        assert text == expected[0]
        assert n_prompt - known < 128
        assert known % 64 == 0
        assert again.messages[0] == {"role": "system", "content": "Be kind."}
        assert send(again, "So?")[1] > n_prompt, "from memory"
    assert later._speaker.engine.saved.files == ()


def test_the_pages_beside_can_be_deleted(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    llm = fake()
    session = llm.session()
    send(session, LONG)
    session.save(path)
    (tmp_path / "talk.json.kv").unlink()
    again = fake().session()
    again.load(path)
    text, known, _ = send(again, "And?")
    assert (text, known) == (send(session, "And?")[0], 0)


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda raw: raw[:-1] + bytes([raw[-1] ^ 1]), "damaged"),
        (lambda raw: raw[:-1], "ends in the middle"),
        (lambda _: b"something else" * 10, "not pages"),
    ],
)
def test_damaged_pages_are_told_and_computed_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: object, says: str
) -> None:
    path, beside = tmp_path / "talk.json", tmp_path / "talk.json.kv"
    session = fake().session()
    send(session, LONG)
    session.save(path)
    beside.write_bytes(damage(beside.read_bytes()))  # type: ignore[operator]
    again = fake().session()
    again.load(path)
    assert send(again, "And?")[:2] == (send(session, "And?")[0], 0)
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_another_models_pages_are_told_and_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "talk.json"
    session = fake().session()
    send(session, LONG)
    session.save(path)
    again = fake("another").session()
    again.load(path)
    assert send(again, "And?")[1] == 0
    assert "another model" in capsys.readouterr().err


def test_files_of_messages_alone_are_read_as_ever(tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    path.write_text(json.dumps({"version": 1, "messages": [{"role": "user", "content": "Hi"}]}))
    session = fake().session()
    session.load(path)
    assert session.messages == [{"role": "user", "content": "Hi"}]


def test_messages_alone_can_be_saved(tmp_path: Path) -> None:
    session = fake().session()
    send(session, LONG)
    session.save(tmp_path / "talk.json", messages_only=True)
    assert [path.name for path in tmp_path.iterdir()] == ["talk.json"]


def test_nothing_is_saved_while_an_answer_is_made(tmp_path: Path) -> None:
    session = fake().session()
    with session.send_stream("Hi", max_tokens=20) as stream:
        next(stream)
        with pytest.raises(OptionError, match="still answering"):
            session.save(tmp_path / "talk.json")
    session.save(tmp_path / "talk.json")


def test_pages_that_have_no_room_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = fake().session()
    send(session, LONG)
    (tmp_path / "talk.json.kv").mkdir()
    session.save(tmp_path / "talk.json")
    assert "the messages are saved, but" in capsys.readouterr().err
    assert (tmp_path / "talk.json").exists()


def test_what_was_spilled_is_saved_too(tmp_path: Path) -> None:
    session = fake().session()
    send(session, LONG)
    session.save(tmp_path / "a.json")
    again = fake().session()
    again.load(tmp_path / "a.json")
    again._known = session._known
    again.save(tmp_path / "b.json")  # read from the one file, written to the other
    assert (tmp_path / "a.json.kv").read_bytes() == (tmp_path / "b.json.kv").read_bytes()
