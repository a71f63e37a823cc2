"""A conversation that computes what is new in it, and no more."""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack, cast

from satchel.base.errors import FileFormatError, OptionError
from satchel.engine.ask import Message, Options, read_messages
from satchel.engine.chat import ChatOptions, ChatPrompt
from satchel.engine.speaker import Speaker
from satchel.engine.stream import Completion, Stream

VERSION = 1  # of a saved conversation


class Session:
    """A conversation with a model, which remembers what was said.

        session = llm.session(system="Answer in one sentence.")
        print(session.send("Why is the sky blue?").text)
        print(session.send("And at sunset?").text)  # computes the new words only

    What is asked next is compared with what the KV cache holds, token by token; the common
    beginning is not computed again, and the answer is the same as if it were. When that room is
    needed for others it may be dropped, which costs time and nothing else. One answer at a time.
    """

    def __init__(self, speaker: Speaker, system: str | None = None) -> None:
        self._speaker = speaker
        self.system = system
        self.messages = self._opening()
        self._stream: weakref.ref[Stream] | None = None  # the last one; it ends when it is dropped
        self._turn = threading.Lock()  # held while an answer is being made

    def send(self, content: str | Iterable[Message], **options: Unpack[ChatOptions]) -> Completion:
        """Says something, and waits for the answer; both become part of `messages`.

        `content` is what the user says, or a list of messages. Raises as `LLM.chat` does, and then
        nothing was said.
        """
        with self.send_stream(content, **options) as stream:
            return stream.result()

    def send_stream(
        self, content: str | Iterable[Message], **options: Unpack[ChatOptions]
    ) -> Stream:
        """As `send`, piece by piece. When it is ended early, what was read of it is the answer."""
        messages, said = self.messages, read_messages(content)

        def answered(stream: Stream) -> None:
            self._turn.release()
            finished = stream.stats and stream.stats.finish_reason != "cancelled"
            if not stream.error and (finished or stream.text):
                messages.extend((*said, answer_message(stream)))

        prompt, rest = self._speaker.chat_prompt([*messages, *said], options)
        return self._start(prompt, rest, answered)

    def generate(
        self, prompt: str | Sequence[int] | ChatPrompt, **options: Unpack[Options]
    ) -> Completion:
        """As `LLM.generate`, without computing again how the prompt begins, where it is cached."""
        with self.stream(prompt, **options) as stream:
            return stream.result()

    def stream(
        self, prompt: str | Sequence[int] | ChatPrompt, **options: Unpack[Options]
    ) -> Stream:
        """As `LLM.stream`, without computing again how the prompt begins, where it is cached."""

        def ended(_: Stream) -> None:
            self._turn.release()

        return self._start(self._speaker.prompt(prompt), options, ended)

    def reset(self) -> None:
        """Forgets the conversation, but not how to behave in it."""
        self.close()
        self.messages = self._opening()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the messages to a JSON file. Raises OptionError when that can't be written."""
        content = {"version": VERSION, "messages": self.messages}
        target = Path(path)
        part = target.with_name(f"{target.name}.part")
        try:
            part.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
            part.replace(target)  # at once: what was there before is never half overwritten
        except OSError as error:
            raise OptionError(f"can't write {target}: {error.strerror}") from None

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on with the messages of a file that `save` wrote.

        Raises OptionError when it can't be read, FileFormatError when it is something else.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise OptionError(f"can't read {path}: {error.strerror}") from None
        except (ValueError, RecursionError):
            content = None
        saved = cast("dict[str, Any]", content if isinstance(content, dict) else {})
        messages = saved.get("messages")
        if not isinstance(messages, list):
            raise FileFormatError(f"{path} is not a saved conversation")
        if saved.get("version") != VERSION:
            raise FileFormatError(f"{path} was saved by another version of Satchel")
        try:
            self.messages = read_messages(messages) if messages else []
        except OptionError as error:
            raise FileFormatError(f"{path}: {error}") from None

    def close(self) -> None:
        """Ends the answer that is being made, if there is one; the messages stay."""
        stream = self._stream and self._stream()
        if stream:
            stream.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _opening(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _start(
        self,
        prompt: list[int] | ChatPrompt,
        options: Mapping[str, Any],
        on_end: Callable[[Stream], None],
    ) -> Stream:
        if not self._turn.acquire(blocking=False):
            raise OptionError("this session is still answering; read or close its stream first")
        try:
            stream = self._speaker.answer(prompt, options, on_end)
        except BaseException:
            self._turn.release()
            raise
        self._stream = weakref.ref(stream)
        return stream


def answer_message(answer: Stream | Completion) -> Message:
    """An answer as the next turn's messages hold it, in OpenAI's form."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.text}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in answer.tool_calls
        ]
    return message
