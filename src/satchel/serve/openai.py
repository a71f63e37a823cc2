"""OpenAI's endpoints: /v1/chat/completions, /v1/completions, /v1/models."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from satchel.api import LLM, Stats
from satchel.serve.answers import Answers, Ask, Part, ask, timings
from satchel.serve.asks import (
    ANSWERING,
    MESSAGES,
    chat_prompt,
    messages_of,
    options_of,
    spread,
    text_prompt,
)
from satchel.serve.bodies import read_body
from satchel.serve.shapes import (
    TEXT,
    TOKENS,
    TRUTH,
    FieldError,
    either,
    listing,
    only,
    record,
)
from satchel.serve.state import server_of
from satchel.serve.streams import events, whole

CHAT = record(
    {
        **ANSWERING,
        "messages": MESSAGES,
        "max_completion_tokens": ANSWERING["max_tokens"],
        "response_format": only({"type": "text"}),
        "tools": only([]),
        "tool_choice": only("none", "auto"),
        "parallel_tool_calls": TRUTH,  # means something beside tools only
        "functions": only([]),
        "function_call": only("none", "auto"),
        "logprobs": only(False),
        "top_logprobs": only(0),
        "modalities": only(["text"]),
        **{name: only() for name in ("audio", "prediction", "reasoning_effort", "verbosity")},
    },
    "messages",
)
COMPLETION = record(
    {
        **ANSWERING,
        "prompt": either(TEXT, TOKENS, listing(TEXT, 64, 1), listing(TOKENS, 64, 1)),
        "echo": TRUTH,
        "best_of": only(1),
        "suffix": only(""),
        "logprobs": only(),
    },
    "prompt",
)


@dataclass(frozen=True)
class Form:
    """How an endpoint's objects look."""

    prefix: str  # of ids
    whole: str  # kind of object
    chunk: str
    choice: Callable[[str], dict[str, Any]]  # of a whole text
    delta: Callable[[str], dict[str, Any]]  # of a part
    opening: Callable[[int], str | None]  # the text before all parts of an answer; None: no chunk


async def chat(request: Request) -> Response:
    """POST /v1/chat/completions."""
    body = await read_body(request, CHAT)
    messages = messages_of(body["messages"])

    def opening(_: int) -> str:
        return ""  # a chunk that only says whose turn it is

    form = Form(
        "chatcmpl",
        "chat.completion",
        "chat.completion.chunk",
        lambda text: {"message": {"role": "assistant", "content": text}},
        lambda text: {"delta": {"content": text} if text else {}},
        opening,
    )
    return await _answer(request, body, form, 1, lambda llm: [chat_prompt(llm, messages)])


async def complete(request: Request) -> Response:
    """POST /v1/completions."""
    body = await read_body(request, COMPLETION)
    prompts = _prompts(body["prompt"])
    n = int(body.get("n", 1))
    texts: list[str] = []

    def prepare(llm: LLM) -> list[list[int]]:
        if body.get("echo"):
            texts.extend(p if isinstance(p, str) else llm.detokenize(p) for p in prompts)
        return [text_prompt(llm, p) if isinstance(p, str) else p for p in prompts]

    def opening(index: int) -> str | None:
        return texts[index // n] if texts else None

    form = Form(
        "cmpl",
        "text_completion",
        "text_completion",
        lambda text: {"text": text},
        lambda text: {"text": text},
        opening,
    )
    return await _answer(request, body, form, len(prompts), prepare)


def _prompts(given: Any) -> list[str | list[int]]:
    """One prompt or many, of text or of tokens."""
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        return [given]
    return cast("list[str | list[int]]", given)


async def _answer(
    request: Request,
    body: dict[str, Any],
    form: Form,
    n_prompts: int,
    prompts: Callable[[LLM], list[list[int]]],
) -> Response:
    options, n = options_of(body), body.get("n", 1)
    most = server_of(request).settings.max_requests
    if n * n_prompts > most:
        raise FieldError("n", f"{n * n_prompts} answers are more than this server's {most}")
    if "stream_options" in body and not body.get("stream"):
        raise FieldError("stream_options", "it needs stream: true")

    def prepare(llm: LLM) -> list[Ask]:
        return spread(prompts(llm), options, n)

    answers = await ask(request, body.get("model"), prepare, n * n_prompts)
    head = {
        "id": f"{form.prefix}-{uuid.uuid4().hex}",
        "object": form.whole,
        "created": int(time.time()),
        "model": answers.loaded.name,
    }
    if body.get("stream"):
        with_usage = bool(body.get("stream_options", {}).get("include_usage"))
        return events(request, answers, _chunks(answers, head, form, n, with_usage))

    def finish(texts: list[str]) -> dict[str, Any]:
        choices = [
            {
                "index": index,
                **form.choice((form.opening(index) or "") + text),
                "logprobs": None,
                "finish_reason": answers.ended[index].finish_reason,
            }
            for index, text in enumerate(texts)
        ]
        return {**head, "choices": choices, "usage": usage(answers, n),
                "timings": timings(answers.stats)}  # fmt: skip

    return await whole(request, answers, finish)


async def _chunks(
    answers: Answers, head: dict[str, Any], form: Form, n: int, with_usage: bool
) -> AsyncIterator[dict[str, Any]]:
    """The chunks of a stream; the last one says what it took."""
    head = {**head, "object": form.chunk}
    none = {"usage": None} if with_usage else {}
    for index in range(answers.n):
        if (text := form.opening(index)) is not None:
            first = form.delta(text)
            if "delta" in first:
                first["delta"] = {"role": "assistant", "content": text}
            yield {**head, "choices": [_choice(index, first)], **none}
    left = answers.n
    async for part in answers.parts():
        left -= part.stats is not None
        for choice in _choices(part, form):
            last = choice["finish_reason"] and not left and not with_usage
            took = {"timings": timings(answers.stats)} if last else {}
            yield {**head, "choices": [choice], **none, **took}
    if with_usage:
        yield {**head, "choices": [], "usage": usage(answers, n),
               "timings": timings(answers.stats)}  # fmt: skip


def _choices(part: Part, form: Form) -> list[dict[str, Any]]:
    """A part's text, if it has any, and its end."""
    found = [_choice(part.index, form.delta(part.text))] if part.text else []
    if part.stats:
        found.append(_choice(part.index, form.delta(""), part.stats.finish_reason))
    return found


def _choice(index: int, said: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    return {"index": index, **said, "logprobs": None, "finish_reason": reason}


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
