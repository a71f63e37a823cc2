"""What OpenAI's chats and completions share; and /v1/models."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from satchel.api import LLM, Options, Stats, Stream
from satchel.serve.answers import Answers, Ask, Part, ask, timings
from satchel.serve.asks import Prompt, spread
from satchel.serve.shapes import FieldError
from satchel.serve.state import server_of
from satchel.serve.streams import events, whole


class Form(Protocol):
    """How an endpoint's objects look."""

    prefix: str  # of ids
    whole: str  # kind of object
    chunk: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """What comes before all parts of an answer; None: nothing."""
        ...

    def choice(self, llm: LLM, index: int, answer: Stream) -> dict[str, Any]:
        """An answer that is complete."""
        ...

    def delta(self, llm: LLM, part: Part) -> dict[str, Any] | None:
        """A part of one; None where it has nothing to say."""
        ...

    def end(self) -> dict[str, Any]:
        """What a chunk says that only ends an answer."""
        ...


async def respond(
    request: Request,
    body: dict[str, Any],
    form: Form,
    n_prompts: int,
    prompts: Callable[[LLM], Sequence[Prompt]],
    options: Options,
) -> Response:
    """Answers each prompt `n` times, as a whole or as a stream."""
    n = body.get("n", 1)
    most = server_of(request).settings.max_requests
    if n * n_prompts > most:
        raise FieldError("n", f"{n * n_prompts} answers are more than this server's {most}")
    if "stream_options" in body and not body.get("stream"):
        raise FieldError("stream_options", "it needs stream: true")

    def prepare(llm: LLM) -> list[Ask]:
        return spread(prompts(llm), options, n)

    field = "response_format" if "response_format" in body else "json_schema"
    answers = await ask(request, body.get("model"), prepare, n * n_prompts, schema_field=field)
    head = {
        "id": f"{form.prefix}-{uuid.uuid4().hex}",
        "object": form.whole,
        "created": int(time.time()),
        "model": answers.loaded.name,
    }
    if body.get("stream"):
        with_usage = bool(body.get("stream_options", {}).get("include_usage"))
        return events(request, answers, _chunks(answers, head, form, n, with_usage))

    def finish(_: list[str]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                "logprobs": None,
                **form.choice(answers.loaded.llm, index, answer),
                "finish_reason": finish_reason(answers, index),
            }
            for index, answer in enumerate(answers.streams)
        ]
        return {**head, "choices": choices, "usage": usage(answers, n),
                "timings": timings(answers.stats)}  # fmt: skip

    return await whole(request, answers, finish)


def finish_reason(answers: Answers, index: int) -> str:
    """Why an answer ended; one that calls tools waits for their results."""
    reason = answers.ended[index].finish_reason
    called = reason == "stop" and answers.streams[index].tool_calls
    return "tool_calls" if called else reason


async def _chunks(
    answers: Answers, head: dict[str, Any], form: Form, n: int, with_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a stream; the last one says what it took."""
    head = {**head, "object": form.chunk}
    none = {"usage": None} if with_usage else {}
    for index in range(answers.n):
        if (opening := form.opening(index)) is not None:
            yield {**head, "choices": [_choice(index, opening)], **none}
    left = answers.n
    async for part in answers.parts():
        if (delta := form.delta(answers.loaded.llm, part)) is not None:
            yield {**head, "choices": [_choice(part.index, delta)], **none}
        if part.stats:
            left -= 1
            took = {} if left or with_usage else {"timings": timings(answers.stats)}
            end = _choice(part.index, form.end(), finish_reason(answers, part.index))
            yield {**head, "choices": [end], **none, **took}
    if with_usage:
        yield {**head, "choices": [], "usage": usage(answers, n),
               "timings": timings(answers.stats)}  # fmt: skip


def _choice(index: int, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, "logprobs": None, **said, "finish_reason": reason}


def usage(answers: Answers, n: int) -> dict[str, Any]:
    """Tokens in and out. The `n` answers to one prompt count it once."""
    firsts: Sequence[Stats] = [s for index, s in answers.ended.items() if index % n == 0]
    prompt = sum(stats.prompt_tokens for stats in firsts)
    answer = sum(stats.generated_tokens for stats in answers.stats)
    cached = sum(stats.cached_tokens for stats in firsts)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


async def models(request: Request) -> JSONResponse:
    """GET /v1/models."""
    return JSONResponse(
        {
            "object": "list",
            "data": [_model(name) for name in await server_of(request).models.catalogue()],
        }
    )


async def model(request: Request) -> JSONResponse:
    """GET /v1/models/NAME."""
    return JSONResponse(_model(await server_of(request).models.find(request.path_params["name"])))


def _model(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "local"}
