"""Conversations as Ollama's clients hold them: messages, tools, thoughts, forms of answers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from satchel.api import LLM, ChatPrompt, Options, Stream
from satchel.serve.conversations import NAME, OBJECT, TOOLS, prompt_of
from satchel.serve.shapes import (
    TEXT,
    TRUTH,
    WHOLE,
    Shape,
    UnsupportedFieldError,
    choice,
    either,
    listing,
    only,
    record,
)

CALL = record(
    {
        "id": TEXT,
        "type": TEXT,
        "function": record(
            {"index": WHOLE, "name": NAME, "description": TEXT, "arguments": OBJECT}, "name"
        ),
    },
    "function",
)
MESSAGE = record(
    {
        "role": {"enum": ["system", "user", "assistant", "tool"]},
        "content": TEXT,
        "thinking": TEXT,  # templates decide what becomes of earlier thoughts
        "tool_calls": listing(CALL, 128),
        "tool_name": TEXT,
        "tool_call_id": TEXT,
        "images": only([]),
    },
    "role",
)
MESSAGES = listing(MESSAGE, 10_000)
FORMS: dict[str, Shape] = {"format": either(choice("", "json"), OBJECT), "think": TRUTH}


def messages_of(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages in OpenAI's form.

    Calls that have no id get one, and results take the ids of the calls in their order.
    """
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []  # ids of calls without a result
    n_calls = 0
    for number, one in enumerate(given):
        role = one["role"]
        for field, owner in (("tool_calls", "assistant"), ("thinking", "assistant"),
                             ("tool_name", "tool"), ("tool_call_id", "tool")):  # fmt: skip
            if one.get(field) and role != owner:
                place = f"messages[{number}].{field}"
                raise UnsupportedFieldError(place, f"a message of the {role} has none")
        message: dict[str, Any] = {"role": role, "content": one.get("content", "")}
        if one.get("thinking"):
            message["reasoning_content"] = one["thinking"]
        if role == "tool":
            known = waiting.pop(0) if waiting else f"{n_calls:09d}"
            message["tool_call_id"] = one.get("tool_call_id", known)
            if "tool_name" in one:
                message["name"] = one["tool_name"]
        calls: list[dict[str, Any]] = []
        for call in one.get("tool_calls", ()):
            n_calls += 1
            function = call["function"]
            calls.append({
                "id": call.get("id", f"{n_calls:09d}"), "type": "function",
                "function": {"name": function["name"], "arguments": function.get("arguments", {})},
            })  # fmt: skip
        if calls:
            message["tool_calls"] = calls
            waiting = [call["id"] for call in calls]
        messages.append(message)
    return messages


def chat_prompt(
    llm: LLM, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
) -> ChatPrompt:
    """The prompt for a chat with the tools that a body offers, and with thoughts or without.

    Raises UnsupportedFieldError where the model has no thoughts, or they can't be turned off.
    """
    offered = {name: body[name] for name in TOOLS if name in body}
    prompt = prompt_of(llm, messages, offered)
    if "think" not in body or (prompt.thoughts is None and not body["think"]):
        return prompt
    if prompt.thoughts is None:
        raise UnsupportedFieldError("think", "this model has no thoughts of its own")
    ways = [
        prompt_of(llm, messages, {**offered, "chat_template_kwargs": {"enable_thinking": thinks}})
        for thinks in (False, True)
    ]
    if not body["think"] and ways[0].text == ways[1].text:
        raise UnsupportedFieldError("think", "this model's thoughts can't be turned off")
    return ways[1 if body["think"] else 0]


def form_of(body: Mapping[str, Any]) -> Options:
    """The engine's options for the form of an answer."""
    given = body.get("format", "")
    if given == "":
        return Options()
    schema = {"type": "object"} if given == "json" else cast("dict[str, Any]", given)
    return Options(json_schema=schema)


def calls_of(answer: Stream, first: int = 0) -> list[dict[str, Any]]:
    """The calls of an answer from number `first` on, with arguments as objects."""
    return [
        {"function": {"name": call.name, "arguments": json.loads(call.arguments)}}
        for call in answer.tool_calls[first:]
    ]
