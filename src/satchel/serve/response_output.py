"""What OpenAI's Responses give out: items, and the events that tell how they come to be."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

from satchel.api import LLM, CallDelta, Stream
from satchel.serve.answers import Part
from satchel.serve.logprobs import chat_logprobs

Event = dict[str, Any]


class Output:
    """Turns an answer's parts into items, one after the other: thoughts, a message, calls."""

    def __init__(self, llm: LLM, *, with_logprobs: bool) -> None:
        self.items: list[dict[str, Any]] = []  # as they are by now
        self.n_reasoning = 0  # tokens
        self._llm = llm
        self._with_logprobs = with_logprobs
        self._logprobs: list[Any] = []  # of tokens whose text is yet to come
        self._is_open = False  # the last item may still grow
        self._call = -1  # the number of the call that is open
        self._n_events = 0

    def event(self, kind: str, **fields: Any) -> Event:
        """An event with the next number."""
        self._n_events += 1
        return {"type": kind, "sequence_number": self._n_events - 1, **fields}

    def add(self, part: Part, answer: Stream) -> Iterator[Event]:
        """The events that a part brings; they must all be taken."""
        if self._with_logprobs and not (part.reasoning or part.tool_calls):
            self._logprobs += chat_logprobs(self._llm, part.logprobs)["content"]
        if part.reasoning:
            yield from self._think(part.reasoning, len(part.tokens))
        own = [delta for delta in part.tool_calls if self._is_open and delta.index == self._call]
        for delta in own:  # what ends a call comes before what is said after it
            yield from self._call_tool(delta, answer)
        if part.text:
            yield from self._say(part, answer)
        for delta in part.tool_calls[len(own) :]:
            yield from self._call_tool(delta, answer)
        if part.stats:
            yield from self._close(answer)
            sound = {call.id for call in answer.tool_calls}
            self.items = [one for one in self.items if one.get("call_id", None) in (None, *sound)]

    def _think(self, text: str, n_tokens: int) -> Iterator[Event]:
        if not self._is_open:
            item = {"id": _id("rs"), "type": "reasoning", "summary": [],
                    "content": [{"type": "reasoning_text", "text": ""}]}  # fmt: skip
            yield self._open(item)
        self.n_reasoning += n_tokens
        self.items[-1]["content"][0]["text"] += text
        yield self._event_of_text("response.reasoning_text.delta", delta=text)

    def _say(self, part: Part, answer: Stream) -> Iterator[Event]:
        if not self._is_open or self.items[-1]["type"] != "message":
            yield from self._close(answer)
            item: dict[str, Any] = {"id": _id("msg"), "type": "message", "role": "assistant",
                    "status": "in_progress", "content": []}  # fmt: skip
            yield self._open(item)
            content: dict[str, Any] = {
                "type": "output_text",
                "text": "",
                "annotations": [],
                "logprobs": [],
            }
            self.items[-1]["content"].append(content)
            yield self._event_of_text("response.content_part.added", part=dict(content))
        logprobs = self._logprobs
        self._logprobs = []
        content = self.items[-1]["content"][0]
        content["text"] += part.text
        content["logprobs"] += logprobs
        yield self._event_of_text("response.output_text.delta", delta=part.text, logprobs=logprobs)

    def _call_tool(self, delta: CallDelta, answer: Stream) -> Iterator[Event]:
        if delta.id:
            yield from self._close(answer)
            item = {"id": _id("fc"), "type": "function_call", "call_id": delta.id,
                    "name": delta.name, "arguments": "", "status": "in_progress"}  # fmt: skip
            yield self._open(item)
            self._call = delta.index
        if delta.arguments:
            self.items[-1]["arguments"] += delta.arguments
            yield self._event_of_item(
                "response.function_call_arguments.delta", delta=delta.arguments
            )

    def _open(self, item: dict[str, Any]) -> Event:
        self._is_open = True
        self.items.append(item)
        shown: dict[str, Any] = {**item, "content": []} if "content" in item else dict(item)
        return self.event("response.output_item.added", output_index=self._index, item=shown)

    def _close(self, answer: Stream) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open = False
        item = self.items[-1]
        if item["type"] == "reasoning":
            text = item["content"][0]["text"]
            yield self._event_of_text("response.reasoning_text.done", text=text)
        elif item["type"] == "message":
            part = item["content"][0]
            item["status"] = "completed"
            yield self._event_of_text(
                "response.output_text.done", text=part["text"], logprobs=part["logprobs"]
            )
            yield self._event_of_text("response.content_part.done", part=part)
        else:
            is_sound = any(call.id == item["call_id"] for call in answer.tool_calls)
            item["status"] = "completed" if is_sound else "incomplete"
            yield self._event_of_item(
                "response.function_call_arguments.done",
                name=item["name"],
                arguments=item["arguments"],
            )
        yield self.event("response.output_item.done", output_index=self._index, item=item)

    @property
    def _index(self) -> int:
        return len(self.items) - 1

    def _event_of_item(self, kind: str, **fields: Any) -> Event:
        item_id = self.items[-1]["id"]
        return self.event(kind, item_id=item_id, output_index=self._index, **fields)

    def _event_of_text(self, kind: str, **fields: Any) -> Event:
        return self._event_of_item(kind, content_index=0, **fields)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"
