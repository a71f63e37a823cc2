"""Ollama's endpoints that answer: /api/generate and /api/chat."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from satchel.api import LLM, Options, TokenLogprob
from satchel.serve.answers import (
    Answers,
    Ask,
    ask,
    elapsed_ns,
    predicted_seconds,
    prompt_seconds,
)
from satchel.serve.asks import MOST, SAMPLING, Prompt, text_prompt
from satchel.serve.bodies import read_body
from satchel.serve.conversations import TOOLS
from satchel.serve.durations import parse_duration
from satchel.serve.logprobs import MOST_TOP, chat_logprobs
from satchel.serve.ollama_messages import (
    FORMS,
    MESSAGES,
    calls_of,
    chat_prompt,
    form_of,
    messages_of,
)
from satchel.serve.shapes import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    FieldError,
    between,
    either,
    only,
    record,
)
from satchel.serve.state import server_of
from satchel.serve.streams import lines, whole

OPTIONS = record(
    {
        **SAMPLING,
        "num_predict": between(WHOLE, -1, MOST),
        "num_ctx": between(WHOLE, 1, MOST),
        "num_keep": only(0),
        "tfs_z": only(1, 1.0),
        "penalize_newline": only(False),
    }
)
ASKING = {
    "model": TEXT,
    "stream": TRUTH,
    "options": OPTIONS,
    "keep_alive": either(TEXT, NUMBER),
    **FORMS,
    "logprobs": TRUTH,
    "top_logprobs": between(WHOLE, 0, MOST_TOP),
}
GENERATE = record(
    {
        **ASKING,
        "prompt": TEXT,
        "system": TEXT,
        "raw": TRUTH,
        "suffix": only(""),
        "template": only(""),
        "context": only([]),
        "images": only([]),
    },
    "model",
)
CHAT = record(
    {
        **ASKING,
        "messages": MESSAGES,
        "tools": TOOLS["tools"],
    },
    "model",
)


async def generate(request: Request) -> Response:
    """POST /api/generate. Without a prompt the model is loaded, or with keep_alive 0 unloaded."""
    body = await read_body(request, GENERATE)
    prompt, raw = body.get("prompt", ""), body.get("raw", False)
    if raw and body.get("system"):
        raise FieldError("system", "with raw: true there is no template to put it into")
    said = [{"role": "system", "content": body["system"]}] if body.get("system") else []
    said.append({"role": "user", "content": prompt})

    if raw and "think" in body:
        raise FieldError("think", "with raw: true there is no template that knows of thoughts")

    def tokens(llm: LLM) -> Prompt:
        return text_prompt(llm, prompt) if raw else chat_prompt(llm, said, body)

    def say(text: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"response": text, **more}

    return await _answer(request, body, tokens if prompt else None, say)


async def chat(request: Request) -> Response:
    """POST /api/chat. Without messages the model is loaded, or with keep_alive 0 unloaded."""
    body = await read_body(request, CHAT)
    messages = messages_of(body.get("messages", []))

    def tokens(llm: LLM) -> Prompt:
        return chat_prompt(llm, messages, body)

    def say(text: str, more: dict[str, Any]) -> dict[str, Any]:
        return {"message": {"role": "assistant", "content": text, **more}}

    return await _answer(request, body, tokens if messages else None, say)


async def _answer(
    request: Request,
    body: dict[str, Any],
    tokens: Callable[[LLM], Prompt] | None,
    say: Callable[[str, dict[str, Any]], dict[str, Any]],
) -> Response:
    """`say` makes an object of a text and what else there is: thoughts, calls of tools."""
    begun_s = time.perf_counter()
    options = _options(body.get("options", {}))
    options.update(form_of(body))
    if body.get("logprobs"):
        options["logprobs"] = body.get("top_logprobs", 0)
    elif body.get("top_logprobs"):
        raise FieldError("top_logprobs", "it needs logprobs: true")
    keep_s = parse_duration(body["keep_alive"]) if "keep_alive" in body else -1
    if tokens is None:
        return await _load(request, body["model"], keep_s, say)

    def prepare(llm: LLM) -> list[Ask]:
        _check_context(body.get("options", {}), llm)
        return [(tokens(llm), options)]

    answers = await ask(request, body["model"], prepare, 1, keep_s, "format")
    load_ns = elapsed_ns(begun_s)
    head = {"model": answers.loaded.name}

    def likely(logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        if "logprobs" not in options:
            return {}
        return {"logprobs": chat_logprobs(answers.loaded.llm, logprobs)["content"]}

    def end(text: str, thoughts: str = "", calls: Sequence[Any] = ()) -> dict[str, Any]:
        said = say(text, _more(thoughts, calls))
        return {**head, "created_at": now(), **said, **_took(answers, begun_s, load_ns)}

    async def objects() -> AsyncIterator[dict[str, Any]]:
        n_calls = 0
        async for part in answers.parts():
            calls = calls_of(answers.streams[0], n_calls)
            n_calls += len(calls)
            if part.text or part.reasoning or calls or part.logprobs:
                said = {**say(part.text, _more(part.reasoning, calls)), **likely(part.logprobs)}
                yield {**head, "created_at": now(), **said, "done": False}
        yield end("")

    def finish(_: list[str]) -> dict[str, Any]:
        answer = answers.streams[0]
        return {**end(answer.text, answer.reasoning, calls_of(answer)), **likely(answer.logprobs)}

    if body.get("stream", True):
        return lines(request, answers, objects())
    return await whole(request, answers, finish)


def _more(thoughts: str, calls: Sequence[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"thinking": thoughts} if thoughts else {}
    return {**found, "tool_calls": calls} if calls else found


async def _load(
    request: Request,
    model: str,
    keep_s: float | None,
    say: Callable[[str, dict[str, Any]], dict[str, Any]],
) -> JSONResponse:
    models = server_of(request).models
    name = await models.find(model)
    if keep_s != 0 or models.has(name):
        models.give(await models.take(name, keep_s))
    reason = "unload" if keep_s == 0 else "load"
    return JSONResponse({"model": name, "created_at": now(), **say("", {}), "done": True,
                         "done_reason": reason})  # fmt: skip


def _options(given: dict[str, Any]) -> Options:
    options: dict[str, Any] = {name: given[name] for name in SAMPLING if name in given}
    if options.get("seed", 0) < 0:
        del options["seed"]
    most = given.get("num_predict", -1)
    options["max_tokens"] = None if most < 0 else most
    return Options(**options)


def _check_context(given: dict[str, Any], llm: LLM) -> None:
    if given.get("num_ctx", 0) > llm.context_length:
        raise FieldError(
            "num_ctx",
            f"{given['num_ctx']} is more than the context of {llm.context_length}; "
            "start the server with a larger --ctx-size",
        )


def _took(answers: Answers, begun_s: float, load_ns: int) -> dict[str, Any]:
    (stats,) = answers.stats
    return {
        "done": True,
        "done_reason": stats.finish_reason,
        "total_duration": elapsed_ns(begun_s),
        "load_duration": load_ns,
        "prompt_eval_count": stats.prompt_tokens,
        "prompt_eval_duration": int(1e9 * prompt_seconds(stats)),
        "eval_count": stats.generated_tokens,
        "eval_duration": int(1e9 * predicted_seconds(stats)),
    }


def now() -> str:
    """The time, as Ollama writes it."""
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
