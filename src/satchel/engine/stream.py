"""An answer as its reader sees it: in pieces as they come, or whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from satchel.engine.logprobs import TokenLogprob
from satchel.engine.request import Delta, Request, Stats
from satchel.text.answer import AnswerParser, CallDelta, Said, ToolCall


@dataclass(frozen=True)
class Piece:
    """What one step brought: some text, perhaps none, and its tokens. The last one has `stats`.

    `logprobs` has one for each token if they were asked for, else none. In the answer to a chat,
    thoughts and calls of tools are not part of the text.
    """

    text: str
    tokens: tuple[int, ...]
    stats: Stats | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[CallDelta, ...] = ()


@dataclass(frozen=True)
class Completion:
    """A whole answer. `tokens` are all that were sampled, the end-of-generation token included.

    `logprobs` has one for each token if they were asked for, else none. In the answer to a chat,
    thoughts and calls of tools are not part of the text.
    """

    text: str
    tokens: tuple[int, ...]
    stats: Stats
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


class Stream(Iterator[Piece]):
    """The pieces of an answer that is being made, for one reader.

        with llm.stream("Once upon a time") as stream:
            for piece in stream:
                print(piece.text, end="", flush=True)
        print(stream.stats)

    The answer goes on whether or not it is read. It ends early by `cancel`, by leaving the `with`
    block, or when the stream is dropped.
    """

    def __init__(
        self,
        request: Request,
        deltas: SimpleQueue[Delta],
        on_end: Callable[[Stream], None] | None = None,
        parser: AnswerParser | None = None,
    ) -> None:
        """`on_end` is called once, when this has been read to its end, or closed, or dropped.
        `parser` takes the answer apart, if it has more than text.
        """
        self.stats: Stats | None = None  # once it has ended
        self.error: Exception | None = None  # why it failed, if it did
        self._request = request
        self._deltas = deltas
        self._on_end = on_end
        self._parser = parser
        self._ended = False
        self._reasoning: list[str] = []
        self._texts: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []

    @property
    def text(self) -> str:
        """All the text that has been read so far."""
        return "".join(self._texts)

    @property
    def reasoning(self) -> str:
        """All the thoughts that have been read so far, which are no part of the text."""
        return "".join(self._reasoning)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls of tools that are complete."""
        return tuple(self._parser.calls) if self._parser else ()

    @property
    def tokens(self) -> tuple[int, ...]:
        """All the tokens that have been read so far."""
        return tuple(self._tokens)

    @property
    def logprobs(self) -> tuple[TokenLogprob, ...]:
        """Those of all the tokens that have been read so far, if they were asked for."""
        return tuple(self._logprobs)

    def __next__(self) -> Piece:
        """Waits for the next piece. Raises what made the request fail."""
        if self._ended:
            raise StopIteration
        try:
            delta = self._deltas.get()
        except BaseException:  # Ctrl-C while waiting
            self.cancel()
            raise
        said = self._read(delta)
        self._texts.append(said.text)
        self._reasoning.append(said.reasoning)
        self._tokens += delta.tokens
        self._logprobs += delta.logprobs
        self.stats, self.error = self._stats(delta), delta.error
        if delta.is_last:
            self._end()
        if delta.error:
            raise delta.error
        return Piece(
            said.text, delta.tokens, self.stats, delta.logprobs, said.reasoning, said.calls
        )

    def _read(self, delta: Delta) -> Said:
        """What a delta says; the answer ends when its reader wants no more."""
        if self._parser is None:
            return Said(delta.text)
        said = self._parser.push(delta.text)
        if delta.is_last:
            rest = self._parser.flush()
            return Said(
                said.text + rest.text, said.reasoning + rest.reasoning, said.calls + rest.calls
            )
        if self._parser.is_done:
            self.cancel()
        return said

    def _stats(self, delta: Delta) -> Stats | None:
        done = self._parser is not None and self._parser.is_done
        if delta.stats and done and delta.stats.finish_reason == "cancelled":
            return replace(delta.stats, finish_reason="stop")  # it was we who ended it
        return delta.stats

    def watch(self, notice: Callable[[], None]) -> None:
        """Has the engine's thread call `notice` when there is something to read, now or later.

        So that one thread can read many streams. `notice` must be quick, and must not raise.
        """
        deltas = self._deltas

        def deliver(delta: Delta) -> None:
            deltas.put(delta)
            notice()

        self._request.deliver = deliver
        notice()  # for what came before

    @property
    def is_ready(self) -> bool:
        """Whether the next piece is there: `next` would not wait."""
        return self._ended or not self._deltas.empty()

    def result(self) -> Completion:
        """The whole answer, when it is there. Raises what made the request fail."""
        for _ in self:
            pass
        if self.error:
            raise self.error
        assert self.stats is not None
        return Completion(
            self.text, self.tokens, self.stats, self.logprobs, self.reasoning, self.tool_calls
        )

    def cancel(self) -> None:
        """Ends the answer before the next step; a last piece with its stats still comes."""
        self._request.cancel()

    def close(self) -> None:
        """Ends the answer, if it has not ended, and waits until the engine has let go of it."""
        if self._ended:
            return
        self.cancel()
        self._end()
        delta = self._deltas.get()
        while not delta.is_last:
            delta = self._deltas.get()
        self.stats, self.error = delta.stats, delta.error

    def _end(self) -> None:
        self._ended = True
        if self._on_end:
            self._on_end(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def __del__(self) -> None:
        if not self._ended:
            self.cancel()
            self._end()
