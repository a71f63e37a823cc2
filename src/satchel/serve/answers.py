"""Answers in the making: started off the event loop, read on it, ended when the client leaves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from satchel.api import LLM, CallDelta, ChatPrompt, Options, Stats, Stream, TokenLogprob
from satchel.base.errors import SatchelError
from satchel.serve.asks import Prompt
from satchel.serve.failures import OverloadedError, RefusedError, schema_named, status_of
from satchel.serve.models import Loaded
from satchel.serve.sessions import Kept, Sessions
from satchel.serve.state import Server, server_of

T = TypeVar("T")
LET_GO_S = 30.0  # a step takes less by far: an engine that takes longer has stopped
Ask: TypeAlias = tuple[Prompt, Options]  # a prompt, and how to answer it


class ClientGoneError(SatchelError):
    """There is no one left to answer."""

    code = "client_gone"


@dataclass(eq=False)
class Asked:
    """One answer in the making."""

    index: int
    prompt: list[int]
    stream: Stream
    kept: Kept


@dataclass(frozen=True)
class Part:
    """What came of the answer number `index`; the last part has `stats`."""

    index: int
    text: str
    stats: Stats | None
    tokens: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    reasoning: str = ""
    tool_calls: tuple[CallDelta, ...] = ()


class Answers:
    """The answers that one request asks for, read side by side. Must be closed."""

    def __init__(self, server: Server, loaded: Loaded, n: int, schema_field: str) -> None:
        self.server = server
        self.schema_field = schema_field
        self.loaded = loaded
        self.n = n
        self.ended: dict[int, Stats] = {}  # by index
        self.streams: list[Stream] = []  # by index, once begun
        self._asked: list[Asked] = []
        self._ready = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + server.settings.answer_s
        self._closed = False

    @property
    def stats(self) -> list[Stats]:
        """What each took of those that have ended."""
        return list(self.ended.values())

    def begin(self, asked: list[Asked]) -> None:
        """Reads these from now on."""
        self._asked = asked
        self.streams = [one.stream for one in asked]
        for one in asked:
            one.stream.watch(self._notice)

    def _notice(self) -> None:
        """Called by the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop has ended, and with it all reading
            return

    async def parts(self) -> AsyncIterator[Part]:
        """All parts as they come. Raises what makes an answer fail, RefusedError when too slow."""
        while self._asked:
            self._ready.clear()
            for asked in list(self._asked):
                while asked.stream.is_ready:
                    part = self._next(asked)
                    yield part
                    if part.stats:
                        break
            if self._asked:
                await self._wait()

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout_at(self._deadline):
                await self._ready.wait()
        except TimeoutError:
            limit = self.server.settings.answer_s
            raise RefusedError(503, "timeout", f"no answer within {limit:g} s") from None

    def _next(self, asked: Asked) -> Part:
        try:
            with schema_named(self.schema_field):
                piece = next(asked.stream)
        except Exception:
            self._end(asked)
            raise
        if piece.stats:
            self._end(asked)
            if piece.stats.finish_reason == "timeout":
                raise RefusedError(503, "timeout", "no whole answer within timeout_s")
        return Part(
            asked.index,
            piece.text,
            piece.stats,
            piece.tokens,
            piece.logprobs,
            piece.reasoning,
            piece.tool_calls,
        )

    def _end(self, asked: Asked) -> None:
        self._asked.remove(asked)
        stats = asked.stream.stats
        self.loaded.sessions.give(asked.kept, asked.prompt if stats else (), asked.stream.tokens)
        if stats:
            self.ended[asked.index] = stats
            self.server.metrics.count(stats)

    async def texts(self) -> list[str]:
        """All answers, whole."""
        texts = [""] * self.n
        async for part in self.parts():
            texts[part.index] += part.text
        return texts

    async def close(self) -> None:
        """Ends what has not ended, and waits until the engine has let go of it: one step."""
        if self._closed:
            return
        self._closed = True
        for asked in self._asked:
            asked.stream.cancel()
        try:
            async with asyncio.timeout(LET_GO_S):
                await self._drain()
        except TimeoutError:
            self.server.journal.write("stuck", model=self.loaded.name, answers=len(self._asked))
        self.server.in_flight -= self.n
        self.server.models.give(self.loaded)

    async def _drain(self) -> None:
        while self._asked:
            self._ready.clear()
            for asked in list(self._asked):
                while asked in self._asked and asked.stream.is_ready:
                    try:
                        self._next(asked)
                    except Exception as error:  # noqa: BLE001 - its client is gone: the log is told
                        if status_of(error) == 500:
                            self.server.journal.fault(error)
                        break
            if self._asked:
                await self._ready.wait()


async def ask(
    request: Request,
    model: str | None,
    prepare: Callable[[LLM], Sequence[Ask]],
    n: int,
    keep_alive_s: float | None = -1,
    schema_field: str = "json_schema",
) -> Answers:
    """Starts `n` answers; `prepare` makes their prompts, in a thread of its own. `schema_field` is
    what the client calls the schema of an answer.

    Raises OverloadedError, ModelNotFoundError, and what prompts and options make the engine raise.
    """
    server = server_of(request)
    if server.in_flight + n > server.settings.max_requests:
        raise OverloadedError(f"{server.in_flight} answers are in the making; come back later")
    server.in_flight += n
    try:
        loaded = await server.models.take(model, keep_alive_s)
    except BaseException:
        server.in_flight -= n
        raise
    answers = Answers(server, loaded, n, schema_field)
    starting = asyncio.ensure_future(asyncio.to_thread(_start, loaded, prepare))
    try:
        with schema_named(schema_field):
            answers.begin(await asyncio.shield(starting))
    except asyncio.CancelledError:
        (asked,) = await asyncio.gather(starting, return_exceptions=True)
        if not isinstance(asked, BaseException):
            answers.begin(asked)
        await answers.close()
        raise
    except BaseException:
        await answers.close()
        raise
    request.state.told["model"] = loaded.name
    return answers


def _start(loaded: Loaded, prepare: Callable[[LLM], Sequence[Ask]]) -> list[Asked]:
    asked: list[Asked] = []
    try:
        for index, (prompt, options) in enumerate(prepare(loaded.llm)):
            asked.append(_start_one(loaded.sessions, index, prompt, options))
    except BaseException:
        for one in asked:
            one.stream.close()
            loaded.sessions.give(one.kept, ())
        raise
    return asked


def _start_one(sessions: Sessions, index: int, prompt: Prompt, options: Options) -> Asked:
    tokens = prompt.tokens if isinstance(prompt, ChatPrompt) else prompt
    kept = sessions.take(tokens)
    try:
        return Asked(index, tokens, kept.session.stream(prompt, **options), kept)
    except BaseException:
        sessions.put_back(kept)
        raise


async def until_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` gives. When the client leaves before, it is cancelled: raises ClientGoneError."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientGoneError("the client has gone")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def timings(stats: Sequence[Stats]) -> dict[str, float]:
    """What answers took, in the words of llama.cpp's server; of several: sums, and the slowest."""
    prompt_n = sum(s.prompt_tokens - s.cached_tokens for s in stats)
    predicted_n = sum(s.generated_tokens for s in stats)
    prompt_ms = 1000 * max(map(prompt_seconds, stats), default=0)
    predicted_ms = 1000 * max(map(predicted_seconds, stats), default=0)
    return {
        "cache_n": sum(s.cached_tokens for s in stats),
        "prompt_n": prompt_n,
        "prompt_ms": prompt_ms,
        "prompt_per_token_ms": prompt_ms / prompt_n if prompt_n else 0.0,
        "prompt_per_second": 1000 * prompt_n / prompt_ms if prompt_ms else 0.0,
        "predicted_n": predicted_n,
        "predicted_ms": predicted_ms,
        "predicted_per_token_ms": predicted_ms / predicted_n if predicted_n else 0.0,
        "predicted_per_second": 1000 * predicted_n / predicted_ms if predicted_ms else 0.0,
    }


def prompt_seconds(stats: Stats) -> float:
    """How long a prompt was computed."""
    n = stats.prompt_tokens - stats.cached_tokens
    return n / stats.prompt_tokens_per_s if stats.prompt_tokens_per_s else 0.0


def predicted_seconds(stats: Stats) -> float:
    """How long an answer was computed, from its first token on."""
    n = max(0, stats.generated_tokens - 1)
    return n / stats.generated_tokens_per_s if stats.generated_tokens_per_s else 0.0


def elapsed_ns(begun_s: float) -> int:
    """Nanoseconds since a `time.perf_counter` reading."""
    return int(1e9 * (time.perf_counter() - begun_s))
