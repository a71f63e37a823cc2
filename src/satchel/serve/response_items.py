"""Items of OpenAI's Responses: their shapes, and the messages that they stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from satchel.serve.conversations import NAME
from satchel.serve.shapes import ANYTHING, TEXT, Shape, choice, either, listing, only, record

LABELS: dict[str, Shape] = {"id": TEXT, "status": TEXT}
INPUT_TEXT = record({"type": choice("input_text"), "text": TEXT}, "type", "text")
OUTPUT_TEXT = record(
    {"type": choice("output_text"), "text": TEXT, "annotations": only([]),
     "logprobs": listing(ANYTHING, 2**20)},
    "type", "text",
)  # fmt: skip
REASONING_TEXT = record({"type": choice("reasoning_text"), "text": TEXT}, "type", "text")
ITEM = either(
    record(
        {**LABELS, "type": choice("function_call"), "call_id": TEXT, "name": NAME,
         "arguments": TEXT},
        "type", "call_id", "name", "arguments",
    ),
    record(
        {**LABELS, "type": choice("function_call_output"), "call_id": TEXT,
         "output": either(TEXT, listing(INPUT_TEXT, 1000, 1))},
        "type", "call_id", "output",
    ),
    record(
        {**LABELS, "type": choice("reasoning"), "content": listing(REASONING_TEXT, 1000),
         "summary": only([]), "encrypted_content": only()},
        "type",
    ),
    record(
        {**LABELS, "type": choice("message"),
         "role": choice("user", "assistant", "system", "developer"),
         "content": either(TEXT, listing(either(INPUT_TEXT, OUTPUT_TEXT), 1000, 1))},
        "role", "content",
    ),
)  # fmt: skip
INPUT = either(TEXT, listing(ITEM, 10_000, 1))


def messages_of_items(given: str | Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The messages that items stand for.

    Thoughts, words and calls that follow each other are one message of the assistant.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    turn: dict[str, Any] = {}  # of the assistant's, in the making
    for item in given:
        found = _part_of_turn(item)
        if found is None or ("content" in turn and "content" in found):
            messages += _finished(turn)
            turn = {}
        if found is None:
            messages.append(_message(item))
        else:
            calls = [*turn.get("tool_calls", ()), *found.get("tool_calls", ())]
            turn = {**turn, **found, **({"tool_calls": calls} if calls else {})}
    return [*messages, *_finished(turn)]


def _finished(turn: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": "", **turn}] if turn else []


def _part_of_turn(item: Mapping[str, Any]) -> dict[str, Any] | None:
    """What an item adds to a message of the assistant; None where it is another's."""
    kind = item.get("type", "message")
    if kind == "reasoning":
        return {"reasoning_content": "".join(part["text"] for part in item.get("content", ()))}
    if kind == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        return {"tool_calls": [{"id": item["call_id"], "type": "function", "function": function}]}
    if kind == "message" and item["role"] == "assistant":
        return {"content": _text(item["content"])}
    return None


def _message(item: Mapping[str, Any]) -> dict[str, Any]:
    if item.get("type") == "function_call_output":
        return {"role": "tool", "tool_call_id": item["call_id"], "content": _text(item["output"])}
    role = "system" if item["role"] == "developer" else item["role"]
    return {"role": role, "content": _text(item["content"])}


def _text(content: str | Sequence[Mapping[str, Any]]) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)
