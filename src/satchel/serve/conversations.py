"""Conversations on the wire: messages, tools, what an answer must be; and their sense for us."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from satchel.api import LLM, ChatPrompt, Options
from satchel.serve.shapes import (
    ANYTHING,
    TEXT,
    TRUTH,
    WHOLE,
    FieldError,
    Shape,
    UnsupportedFieldError,
    choice,
    either,
    listing,
    mapping,
    only,
    record,
)

OBJECT = mapping(ANYTHING)
NAME: Shape = {**TEXT, "minLength": 1, "maxLength": 64}
CALL = record(
    {
        "id": TEXT,
        "type": only("function"),
        "index": WHOLE,  # of a call that was put together from a stream
        "function": record({"name": NAME, "arguments": TEXT}, "name", "arguments"),
    },
    "function",
)
CONTENT = either(
    TEXT, listing(record({"type": only("text"), "text": TEXT}, "type", "text"), 1000, 1)
)
MESSAGE = record(
    {
        "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
        "content": CONTENT,
        "tool_calls": listing(CALL, 128),
        "tool_call_id": TEXT,
        "name": TEXT,
        "reasoning_content": TEXT,  # templates decide what becomes of earlier thoughts
        "annotations": only([]),
        **{name: only() for name in ("function_call", "refusal", "audio")},
    },
    "role",
)
MESSAGES = listing(MESSAGE, 10_000, 1)

TOOL = record(
    {
        "type": choice("function"),
        "function": record(
            {"name": NAME, "description": TEXT, "parameters": OBJECT, "strict": TRUTH}, "name"
        ),
    },
    "type",
    "function",
)
TOOLS: dict[str, Shape] = {
    "tools": listing(TOOL, 128),
    "tool_choice": either(
        choice("none", "auto", "required"),
        record(
            {"type": choice("function"), "function": record({"name": NAME}, "name")},
            "type",
            "function",
        ),
    ),
    "parallel_tool_calls": TRUTH,
    "chat_template_kwargs": OBJECT,
}

SCHEMA = either(OBJECT, TRUTH)
# what an answer must be, under the names that llama.cpp's server gives it
CONSTRAINTS: dict[str, Shape] = {
    "json_schema": SCHEMA,
    "grammar": TEXT,
    "regex": TEXT,
    "choice": listing(TEXT, 1024, 1),  # llama.cpp's server has none
}
FORMAT = record(
    {
        "type": choice("text", "json_object", "json_schema"),
        "schema": SCHEMA,
        "json_schema": record(
            {"name": TEXT, "description": TEXT, "schema": SCHEMA, "strict": TRUTH}, "schema"
        ),
    },
    "type",
)


def messages_of(given: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates take them, with plain texts; "developer" is OpenAI's new "system".

    Raises FieldError and UnsupportedFieldError for what does not go together.
    """
    return [_message(f"messages[{number}]", one) for number, one in enumerate(given)]


def _message(place: str, given: Mapping[str, Any]) -> dict[str, Any]:
    role = given["role"]
    for field, roles in (
        ("tool_calls", ("assistant",)),
        ("reasoning_content", ("assistant",)),
        ("tool_call_id", ("tool",)),
        ("name", ("tool",)),
    ):
        if given.get(field) and role not in roles:
            raise UnsupportedFieldError(f"{place}.{field}", f"a message of the {role} has none")
    if role == "tool" and "tool_call_id" not in given:
        raise FieldError(f"{place}.tool_call_id", "it is missing")
    if "content" not in given and not given.get("tool_calls"):
        raise FieldError(f"{place}.content", "it is missing")
    names = ("tool_calls", "tool_call_id", "name", "reasoning_content")
    return {
        "role": "system" if role == "developer" else role,
        "content": text_of(given.get("content", "")),
        **{name: given[name] for name in names if given.get(name)},
    }


def text_of(content: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a content that may come in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def prompt_of(
    llm: LLM, messages: Sequence[Mapping[str, Any]], body: Mapping[str, Any]
) -> ChatPrompt:
    """The prompt that asks for an answer to a conversation, with the tools that a body offers."""
    return llm.chat_prompt(messages, **{name: body[name] for name in TOOLS if name in body})


def constraint_of(body: Mapping[str, Any]) -> Options:
    """The engine's options for what an answer must be. Raises FieldError for two of them."""
    found = {name: body[name] for name in CONSTRAINTS if name in body}
    form = body.get("response_format", {"type": "text"})
    kind = form["type"]
    given = {"json_object": "schema", "json_schema": "json_schema"}.get(kind)
    for name in ("schema", "json_schema"):
        if name in form and name != given:
            raise FieldError(f"response_format.{name}", f"the type is {kind}; leave one out")
    if kind == "json_object":
        found["response_format"] = form.get("schema", {"type": "object"})
    elif kind == "json_schema":
        if "json_schema" not in form:
            raise FieldError("response_format.json_schema", "it is missing")
        found["response_format"] = form["json_schema"]["schema"]
    if len(found) > 1:
        raise FieldError(list(found)[1], f"{next(iter(found))} is given too; give one of them")
    if "response_format" in found:
        return cast("Options", {"json_schema": found["response_format"]})
    return cast("Options", found)
