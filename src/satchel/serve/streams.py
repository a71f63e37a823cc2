"""Responses that are sent as they come: server-sent events, and JSON lines."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from satchel.serve.answers import Answers, ClientGoneError, until_gone
from satchel.serve.failures import code_of, ollama_error, openai_error, status_of
from satchel.serve.state import server_of

Objects = AsyncIterator[dict[str, Any]]


class Streamed(Response):
    """Sends chunks as they come, and closes their answers, however that ends."""

    def __init__(
        self,
        answers: Answers | None,
        chunks: AsyncGenerator[bytes, None],
        media_type: str,
        limit_s: float,
    ) -> None:
        """`limit_s`: what all may take, so that one who does not read holds up no one for ever."""
        super().__init__(media_type=media_type, headers={"Cache-Control": "no-store"})
        del self.headers["content-length"]
        self._answers = answers
        self._chunks = chunks
        self._limit_s = limit_s

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                await until_gone(receive, self._send(send))
        except TimeoutError:
            raise ClientGoneError("the client reads too slowly") from None
        finally:
            await self._chunks.aclose()
            if self._answers:
                await self._answers.close()

    async def _send(self, send: Send) -> None:
        await send(
            {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
        )
        async for chunk in self._chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def events(request: Request, answers: Answers, objects: Objects) -> Streamed:
    """Objects as server-sent events, as OpenAI's clients read them."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        async for found in _told(request, answers, objects, openai_error):
            yield f"data: {as_json(found)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    return Streamed(answers, chunks(), "text/event-stream", _limit_s(request))


def typed_events(
    request: Request,
    answers: Answers,
    objects: Objects,
    failure: Callable[[Exception], dict[str, Any]],
) -> Streamed:
    """Objects as server-sent events that bear their type as a name, as OpenAI's Responses do."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        async for found in _told(request, answers, objects, failure):
            yield f"event: {found['type']}\ndata: {as_json(found)}\n\n".encode()

    return Streamed(answers, chunks(), "text/event-stream", _limit_s(request))


def lines(request: Request, answers: Answers | None, objects: Objects) -> Streamed:
    """Objects as lines of JSON, as Ollama's clients read them."""

    async def chunks() -> AsyncGenerator[bytes, None]:
        async for found in _told(request, answers, objects, ollama_error):
            yield f"{as_json(found)}\n".encode()

    return Streamed(answers, chunks(), "application/x-ndjson", _limit_s(request))


def _limit_s(request: Request) -> float:
    return 1 + 2 * server_of(request).settings.answer_s  # an answer's own limit comes first


async def _told(
    request: Request,
    answers: Answers | None,
    objects: Objects,
    failure: Callable[[Exception], dict[str, Any]],
) -> Objects:
    """Objects; one that fails on the way is followed by the error: its status went out long ago."""
    try:
        async for found in objects:
            yield found
    except Exception as error:  # noqa: BLE001 - whatever it is, the client must hear it
        if status_of(error) == 500:
            server_of(request).journal.fault(error)
        request.state.told["failed"] = code_of(error)
        yield failure(error)
    finally:
        if answers:
            tell(request, answers)


async def whole(
    request: Request, answers: Answers, finish: Callable[[list[str]], dict[str, Any]]
) -> JSONResponse:
    """One response for answers that are complete; `finish` makes its body of their texts."""
    try:
        texts = await until_gone(request.receive, answers.texts())
        tell(request, answers)
        return JSONResponse(finish(texts))
    finally:
        await answers.close()


def tell(request: Request, answers: Answers) -> None:
    """Notes for the log what was done."""
    request.state.told |= {
        "prompt_tokens": sum(s.prompt_tokens for s in answers.stats),
        "cached_tokens": sum(s.cached_tokens for s in answers.stats),
        "generated_tokens": sum(s.generated_tokens for s in answers.stats),
    }


def as_json(value: Any) -> str:
    """JSON on one line, without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
