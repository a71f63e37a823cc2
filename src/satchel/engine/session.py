"""A conversation that computes what is new in it, and no more."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Unpack

from satchel.base.errors import OptionError
from satchel.engine.ask import Message, Options, read_messages
from satchel.engine.chat import ChatOptions, ChatPrompt
from satchel.engine.conversation import (
    saved_messages,
    saved_pages,
    write_messages,
    write_pages,
)
from satchel.engine.speaker import Speaker
from satchel.engine.stream import Completion, Stream

if TYPE_CHECKING:
    from satchel.files.page_files import PageFile


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
        self._known: tuple[int, ...] = ()  # the tokens of the last prompt and its answer
        self._pages: PageFile | None = None  # where a loaded conversation's pages are

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
            finished = stream.stats and stream.stats.finish_reason in ("stop", "length")
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
        return self._start(self._speaker.prompt(prompt), options, lambda _: None)

    def reset(self) -> None:
        """Forgets the conversation, but not how to behave in it."""
        self.close()
        self.messages = self._opening()

    def save(self, path: str | os.PathLike[str], *, messages_only: bool = False) -> None:
        """Writes the messages to a JSON file, and what was computed of them to one beside it.

        Raises OptionError when the messages can't be written, or while an answer is being made.
        """
        with self._no_answer():
            write_messages(path, self.messages)
            if messages_only:
                return
            speaker = self._speaker
            pages = speaker.driver.do(lambda: speaker.engine.upkeep.snapshot(self._known))
            write_pages(path, speaker.model.fingerprint, pages)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Goes on with the messages of a file that `save` wrote, without computing them again.

        Raises OptionError when it can't be read, FileFormatError when it is something else. Where
        what was computed is damaged or another model's, a line in the log says so.
        """
        with self._no_answer():
            self.messages = saved_messages(path)
            self.close()
            if pages := saved_pages(path, self._speaker.model.fingerprint):
                self._pages = pages
                self._speaker.engine.saved.add(pages)

    def close(self) -> None:
        """Ends the answer that is being made, if there is one; the messages stay."""
        self._forget_pages()
        stream = self._stream and self._stream()
        if stream:
            stream.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _forget_pages(self) -> None:
        if self._pages:
            self._speaker.engine.saved.remove(self._pages)
            self._pages = None

    def __del__(self) -> None:
        self._forget_pages()

    def _opening(self) -> list[Message]:
        return [] if self.system is None else [{"role": "system", "content": self.system}]

    def _start(
        self,
        prompt: list[int] | ChatPrompt,
        options: Mapping[str, Any],
        on_end: Callable[[Stream], None],
    ) -> Stream:
        tokens = prompt.tokens if isinstance(prompt, ChatPrompt) else prompt

        def ended(stream: Stream) -> None:
            self._known = (*tokens, *stream.tokens)
            self._turn.release()
            on_end(stream)

        self._take_turn()
        try:
            stream = self._speaker.answer(prompt, options, ended)
        except BaseException:
            self._turn.release()
            raise
        self._stream = weakref.ref(stream)
        return stream

    @contextmanager
    def _no_answer(self) -> Generator[None]:
        """Sees to it that none is being made, nor begun."""
        self._take_turn()
        try:
            yield
        finally:
            self._turn.release()

    def _take_turn(self) -> None:
        if not self._turn.acquire(blocking=False):
            raise OptionError("this session is still answering; read or close its stream first")


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
