"""A model that answers what it is told to, for tests of the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from satchel.base.errors import OptionError

STATS = SimpleNamespace(
    prompt_tokens=7,
    cached_tokens=0,
    generated_tokens=3,
    dropped_tokens=0,
    time_to_first_token_ms=12.4,
    prompt_tokens_per_s=700.0,
    generated_tokens_per_s=50.25,
    finish_reason="stop",
)


class FakeStream:
    """Pieces, then the stats; one that is a pair has thoughts too, an exception is raised."""

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces = pieces
        self.stats: Any = None
        self.closed = False

    def __iter__(self) -> Iterator[Any]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            thought, text = piece if isinstance(piece, tuple) else ("", piece)
            yield SimpleNamespace(text=text, reasoning=thought)
        self.stats = STATS

    def close(self) -> None:
        self.closed = True
        self.stats = STATS

    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class FakeLLM:
    """Notes what it is asked; `answers` are lists of pieces, one for each ask."""

    name = "fake.gguf"

    def __init__(self, *answers: list[Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, Any]] = []
        self.options: dict[str, Any] = {}
        self.loaded: dict[str, Any] = {}
        self.messages: list[Any] = []
        self.refusal: Exception | None = None
        self.streams: list[FakeStream] = []

    def open(self, model: str, **named: Any) -> FakeLLM:
        self.loaded = {"model": model, **named}
        return self

    def _stream(self, kind: str, asked: Any, options: dict[str, Any]) -> FakeStream:
        self.asked.append((kind, asked))
        if self.refusal:
            raise self.refusal
        self.options = options
        self.streams.append(FakeStream(self.answers.pop(0) if self.answers else ["Yes."]))
        return self.streams[-1]

    def stream(self, prompt: str, **options: Any) -> FakeStream:
        return self._stream("raw", prompt, options)

    def chat_stream(self, messages: Any, **options: Any) -> FakeStream:
        return self._stream("chat", messages, options)

    def session(self, system: str | None = None) -> FakeLLM:
        self.asked.append(("session", system))
        return self

    def send_stream(self, message: str, **options: Any) -> FakeStream:
        self.messages.append(message)
        return self._stream("send", message, options)

    def reset(self) -> None:
        self.messages = []

    def save(self, path: str) -> None:
        Path(path).write_text(json.dumps(self.messages), encoding="utf-8")

    def load(self, path: str) -> None:
        raise OptionError(f"can't read {path}: no such file")

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None: ...
