"""POST /v1/chat/completions: conversations, with tools, thoughts and probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from satchel.api import LLM, CallDelta, Stream, TokenLogprob
from satchel.serve.answers import Part
from satchel.serve.asks import ANSWERING, options_of
from satchel.serve.bodies import read_body
from satchel.serve.conversations import (
    CONSTRAINTS,
    FORMAT,
    MESSAGES,
    TOOLS,
    constraint_of,
    messages_of,
    prompt_of,
)
from satchel.serve.logprobs import MOST_TOP, chat_logprobs
from satchel.serve.openai import respond
from satchel.serve.shapes import TRUTH, WHOLE, FieldError, between, only, record

CHAT = record(
    {
        **ANSWERING,
        **TOOLS,
        **CONSTRAINTS,
        "messages": MESSAGES,
        "max_completion_tokens": ANSWERING["max_tokens"],
        "response_format": FORMAT,
        "logprobs": TRUTH,
        "top_logprobs": between(WHOLE, 0, MOST_TOP),
        "functions": only([]),
        "function_call": only("none", "auto"),
        "modalities": only(["text"]),
        **{name: only() for name in ("audio", "prediction", "reasoning_effort", "verbosity")},
    },
    "messages",
)


class ChatForm:
    """How chats look."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    chunk = "chat.completion.chunk"

    def __init__(self, with_logprobs: bool) -> None:
        self.with_logprobs = with_logprobs

    def opening(self, index: int) -> dict[str, Any]:  # noqa: ARG002 - they are all alike
        """A chunk that only says whose turn it is."""
        return {"delta": {"role": "assistant", "content": ""}}

    def choice(self, llm: LLM, index: int, answer: Stream) -> dict[str, Any]:  # noqa: ARG002
        """An answer that is complete."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.tool_calls:
            message["content"] = answer.text or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function",
                 "function": {"name": call.name, "arguments": call.arguments}}
                for call in answer.tool_calls
            ]  # fmt: skip
        return {"message": message, **self._logprobs(llm, answer.logprobs)}

    def delta(self, llm: LLM, part: Part) -> dict[str, Any] | None:
        """A part of one."""
        delta: dict[str, Any] = {}
        if part.reasoning:
            delta["reasoning_content"] = part.reasoning
        if part.text:
            delta["content"] = part.text
        if part.tool_calls:
            delta["tool_calls"] = [_call(one) for one in part.tool_calls]
        if not delta and not part.logprobs:
            return None
        return {"delta": delta, **self._logprobs(llm, part.logprobs)}

    def end(self) -> dict[str, Any]:
        """A chunk that only ends an answer."""
        return {"delta": {}}

    def _logprobs(self, llm: LLM, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        return {"logprobs": chat_logprobs(llm, logprobs)} if self.with_logprobs else {}


def _call(delta: CallDelta) -> dict[str, Any]:
    """A part of a call: its id and name come once, its arguments in parts."""
    function = {"arguments": delta.arguments}
    if not delta.id:
        return {"index": delta.index, "function": function}
    function = {"name": delta.name, **function}
    return {"index": delta.index, "id": delta.id, "type": "function", "function": function}


async def chat(request: Request) -> Response:
    """POST /v1/chat/completions."""
    body = await read_body(request, CHAT)
    messages = messages_of(body["messages"])
    options = options_of(body)
    options.update(constraint_of(body))
    with_logprobs = body.get("logprobs", False)
    if with_logprobs:
        options["logprobs"] = body.get("top_logprobs", 0)
    elif body.get("top_logprobs"):
        raise FieldError("top_logprobs", "it needs logprobs: true")
    return await respond(
        request,
        body,
        ChatForm(with_logprobs),
        1,
        lambda llm: [prompt_of(llm, messages, body)],
        options,
    )
