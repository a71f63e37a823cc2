"""OpenAI's Responses: /v1/responses, whose answers are items and may be followed on by their id."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from satchel.api import LLM
from satchel.serve.answers import Answers, Ask, ask, timings, until_gone
from satchel.serve.asks import MOST, SAMPLING, TERMS, options_of
from satchel.serve.bodies import read_body
from satchel.serve.conversations import (
    CONSTRAINTS,
    NAME,
    OBJECT,
    SCHEMA,
    constraint_of,
    prompt_of,
)
from satchel.serve.failures import code_of, message_of
from satchel.serve.response_items import INPUT, messages_of_items
from satchel.serve.response_output import Event, Output
from satchel.serve.response_store import NoResponseError, ResponseStore
from satchel.serve.shapes import (
    TEXT,
    TRUTH,
    WHOLE,
    FieldError,
    between,
    choice,
    either,
    listing,
    mapping,
    only,
    record,
)
from satchel.serve.state import server_of
from satchel.serve.streams import tell, typed_events

LOGPROBS = "message.output_text.logprobs"
TOOL = record(
    {"type": choice("function"), "name": NAME, "description": TEXT, "parameters": OBJECT,
     "strict": TRUTH},
    "type", "name",
)  # fmt: skip
FORMAT = record(
    {"type": choice("text", "json_object", "json_schema"), "name": TEXT, "description": TEXT,
     "schema": SCHEMA, "strict": TRUTH},
    "type",
)  # fmt: skip
RESPONSE = record(
    {
        **SAMPLING,
        **TERMS,
        **CONSTRAINTS,
        "model": TEXT,
        "input": INPUT,
        "instructions": TEXT,
        "previous_response_id": TEXT,
        "store": TRUTH,
        "stream": TRUTH,
        "max_output_tokens": between(WHOLE, 1, MOST),
        "text": record({"format": FORMAT, "verbosity": only()}),
        "tools": listing(TOOL, 128),
        "tool_choice": either(
            choice("none", "auto", "required"),
            record({"type": choice("function"), "name": NAME}, "type", "name"),
        ),
        "parallel_tool_calls": TRUTH,
        "chat_template_kwargs": OBJECT,
        "include": listing(only(LOGPROBS), 8),
        "top_logprobs": between(WHOLE, 0, 20),
        "reasoning": record({name: only() for name in ("effort", "summary", "generate_summary")}),
        "truncation": only("disabled"),
        "background": only(False),
        "service_tier": only("auto", "default"),
        "stream_options": record({"include_obfuscation": only(False)}),
        **{name: only() for name in ("conversation", "prompt", "max_tool_calls", "moderation")},
        # labels, which by their meaning change no answer
        "metadata": mapping(TEXT),
        **dict.fromkeys(("user", "safety_identifier", "prompt_cache_key"), TEXT),
    },
    "input",
)


class Reply:
    """One response in the making."""

    def __init__(self, body: Mapping[str, Any], messages: list[dict[str, Any]]) -> None:
        """`messages` are the conversation so far, without the instructions."""
        self.body = body
        self.messages = messages
        self.id = f"resp_{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.with_logprobs = LOGPROBS in body.get("include", ()) or "top_logprobs" in body
        self.answers: Answers
        self.output: Output

    def prepare(self, llm: LLM) -> list[Ask]:
        """The prompt, and how to answer it."""
        body = self.body
        options = options_of({**body, "max_tokens": body.get("max_output_tokens", -1)})
        options.update(constraint_of(_as_chat(body)))
        if self.with_logprobs:
            options["logprobs"] = body.get("top_logprobs", 0)
        instructions = body.get("instructions")
        first = [{"role": "system", "content": instructions}] if instructions else []
        return [(prompt_of(llm, [*first, *self.messages], _as_chat(body)), options)]

    def begin(self, answers: Answers) -> None:
        """The answer has begun."""
        self.answers = answers
        self.output = Output(answers.loaded.llm, with_logprobs=self.with_logprobs)

    async def events(self, store: ResponseStore) -> AsyncIterator[Event]:
        """All events, up to the one with the whole response, which is stored before it is told."""
        yield self.output.event("response.created", response=self.shown("in_progress"))
        yield self.output.event("response.in_progress", response=self.shown("in_progress"))
        answer = self.answers.streams[0]
        async for part in self.answers.parts():
            for event in self.output.add(part, answer):
                yield event
        done = self.shown(self.status)
        if self.body.get("store", True):
            store.keep(done, self.conversation())
        yield self.output.event(f"response.{self.status}", response=done)

    def failed(self, error: Exception) -> Event:
        """The last event of a response that failed on the way."""
        told = {"code": "server_error", "message": f"{code_of(error)}: {message_of(error)}"}
        return self.output.event(
            "response.failed", response={**self.shown("failed"), "error": told}
        )

    @property
    def status(self) -> str:
        """Whether the answer is whole."""
        is_whole = self.answers.ended[0].finish_reason == "stop"
        return "completed" if is_whole else "incomplete"

    def conversation(self) -> list[dict[str, Any]]:
        """The messages, with the answer."""
        return [*self.messages, *messages_of_items(self.output.items)]

    def shown(self, status: str) -> dict[str, Any]:
        """The response as it is by now."""
        body, ended = self.body, self.answers.ended.get(0)
        reason = {"reason": "max_output_tokens"} if status == "incomplete" else None
        found: dict[str, Any] = {
            "id": self.id, "object": "response", "created_at": self.created, "status": status,
            "model": self.answers.loaded.name, "output": [dict(one) for one in self.output.items],
            "error": None, "incomplete_details": reason,
            "instructions": body.get("instructions"), "metadata": body.get("metadata", {}),
            "max_output_tokens": body.get("max_output_tokens"),
            "previous_response_id": body.get("previous_response_id"),
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "tools": body.get("tools", []), "tool_choice": body.get("tool_choice", "auto"),
            "text": {"format": body.get("text", {}).get("format", {"type": "text"})},
            "temperature": body.get("temperature"), "top_p": body.get("top_p"),
            "reasoning": {"effort": None, "summary": None}, "truncation": "disabled",
            "store": body.get("store", True), "user": body.get("user"), "usage": None,
        }  # fmt: skip
        if ended:
            found["usage"] = {
                "input_tokens": ended.prompt_tokens,
                "input_tokens_details": {"cached_tokens": ended.cached_tokens},
                "output_tokens": ended.generated_tokens,
                "output_tokens_details": {"reasoning_tokens": self.output.n_reasoning},
                "total_tokens": ended.prompt_tokens + ended.generated_tokens,
            }
            found["timings"] = timings([ended])
        return found


async def respond(request: Request) -> Response:
    """POST /v1/responses."""
    body = await read_body(request, RESPONSE)
    store = server_of(request).responses
    earlier: list[dict[str, Any]] = []
    if name := body.get("previous_response_id"):
        stored = store.find(name)
        if stored is None:
            raise NoResponseError(400, name, "previous_response_id")
        earlier = stored.messages
    if "stream_options" in body and not body.get("stream"):
        raise FieldError("stream_options", "it needs stream: true")
    reply = Reply(body, [*earlier, *messages_of_items(body["input"])])
    answers = await ask(
        request, body.get("model"), reply.prepare, 1, schema_field=_schema_field(body)
    )
    reply.begin(answers)

    if body.get("stream"):
        return typed_events(request, answers, reply.events(store), reply.failed)

    async def last() -> dict[str, Any]:
        found: dict[str, Any] = {}
        async for event in reply.events(store):
            found = event
        return found["response"]

    try:
        done = await until_gone(request.receive, last())
        tell(request, answers)
        return JSONResponse(done)
    finally:
        await answers.close()


async def retrieve(request: Request) -> JSONResponse:
    """GET /v1/responses/NAME."""
    name = request.path_params["name"]
    stored = server_of(request).responses.find(name)
    if stored is None:
        raise NoResponseError(404, name)
    return JSONResponse(stored.response)


async def forget(request: Request) -> JSONResponse:
    """DELETE /v1/responses/NAME."""
    name = request.path_params["name"]
    if not server_of(request).responses.forget(name):
        raise NoResponseError(404, name)
    return JSONResponse({"id": name, "object": "response", "deleted": True})


def _schema_field(body: Mapping[str, Any]) -> str:
    return "json_schema" if "json_schema" in body else "text.format"


def _as_chat(body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a chat that mean what a body says of tools and of the answer's form."""
    given = ("parallel_tool_calls", "chat_template_kwargs", "tool_choice", *CONSTRAINTS)
    found: dict[str, Any] = {name: body[name] for name in given if name in body}
    if "tool_choice" in found and not isinstance(found["tool_choice"], str):
        name = found["tool_choice"]["name"]
        found["tool_choice"] = {"type": "function", "function": {"name": name}}
    tools: list[dict[str, Any]] = body.get("tools", [])
    found["tools"] = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in tools
    ]
    form = body.get("text", {}).get("format", {"type": "text"})
    if form["type"] == "json_schema":
        inner = {name: form[name] for name in ("schema", "strict") if name in form}
        if "schema" not in inner:
            raise FieldError("text.format.schema", "it is missing")
        found["response_format"] = {"type": "json_schema", "json_schema": inner}
    else:
        found["response_format"] = {"type": form["type"]}
    return found
