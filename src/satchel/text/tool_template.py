"""What a chat template makes of tools, calls and thoughts: found out by having it write some.

Templates differ in more than they say: some take arguments as an object and some as text, some have
no place for calls though they have one for tools. What a template would drop in silence is refused,
or written for it in its model's own way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, Literal, TypeAlias, cast

from satchel.base.errors import OptionError, TemplateError, UnsupportedError
from satchel.text.answer import AnswerParser
from satchel.text.conventions import CONVENTIONS, Call, Convention, find_convention, find_thoughts
from satchel.text.template import ChatTemplate

Message: TypeAlias = Mapping[str, Any]
Form: TypeAlias = Literal["object", "text"] | None  # of arguments; None: calls are dropped

_ASKED: Message = {"role": "user", "content": "Hi"}
_NAME, _ARGUMENTS = "probe", {"n": 12345}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": "A number."}},
            "required": ["n"],
        },
    },
}
_RESULT = "result 67890"


class ToolTemplate:
    """A chat template as those see it who offer tools."""

    def __init__(self, template: ChatTemplate, has_token: Callable[[str], bool]) -> None:
        """`has_token` says whether the model's vocabulary has a special token of this text."""
        self._template = template
        self._has_token = has_token
        self.thoughts = find_thoughts(template.source)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> str:
        """The text that asks for an answer to a conversation in which tools are offered.

        Raises UnsupportedError where the template has no place for tools or calls, OptionError for
        calls that are none, and TemplateError.
        """
        if tools:
            self._check_tools()
        if any(message["role"] == "tool" for message in messages) and not self._writes_results:
            raise UnsupportedError("messages: the model's template leaves out the results of tools")
        written = [self._written(number, one) for number, one in enumerate(messages, 1)]
        return self._template.render(written, tools=list(tools) or None, **(extra or {}))

    @cached_property
    def convention(self) -> Convention | None:
        """How the model writes calls; None where that is not known, or it calls no tools.

        What the template writes for a call must read back. One that writes none goes by its text,
        or by the special tokens of the model.
        """
        found = find_convention(self._template.source)
        if self._form:
            firsts = [found] if found else []
            known = (one for one in (*firsts, *CONVENTIONS) if self._reads_back(one))
            return next(known, None)
        if found or not self._takes_tools:
            return found
        return next((c for c in CONVENTIONS if any(map(self._has_token, c.marked))), None)

    def _check_tools(self) -> None:
        if not self._takes_tools:
            raise UnsupportedError(
                "tools: the model's template has no place for them; "
                "take a model that was trained to call tools"
            )
        if self.convention is None:
            raise UnsupportedError(
                "tools: how this model writes its calls is not known to Satchel, which knows "
                + ", ".join(convention.name for convention in CONVENTIONS)
            )

    def _written(self, number: int, message: Message) -> Message:
        """A message as the template takes it."""
        given = message.get("tool_calls")
        content = message.get("content")
        written = {**message, "content": "" if content is None else content}
        written.pop("tool_calls", None)
        if not given:
            return written
        calls = _read_calls(number, given)
        if self._form:
            as_text = self._form == "text"
            return {**written, "tool_calls": [_with_arguments(call, as_text) for call in calls]}
        if self.convention is None:
            raise UnsupportedError("messages: the model's template leaves out calls of tools")
        pairs: list[Call] = [(c["function"]["name"], c["function"]["arguments"]) for c in calls]
        said = [written["content"], self.convention.write(pairs)]
        return {**written, "content": "\n".join(text for text in said if text)}

    @cached_property
    def _takes_tools(self) -> bool:
        with_tools = self._try([_ASKED], tools=[_TOOL])
        return with_tools is not None and with_tools != self._try([_ASKED])

    @cached_property
    def _writes_results(self) -> bool:
        text = self._try(self._probe(as_text=self._form == "text"), tools=[_TOOL])
        return text is not None and _RESULT in text

    @cached_property
    def _form(self) -> Form:
        for form in ("object", "text"):
            text = self._try(self._probe(as_text=form == "text"), tools=[_TOOL])
            if text is not None and str(_ARGUMENTS["n"]) in text and '\\"' not in text:
                return form
        return None

    def _probe(self, as_text: bool) -> list[Message]:
        """A conversation with a call. (Mistral's templates insist on ids of nine letters.)"""
        call = {"id": "probe0001", "function": {"name": _NAME, "arguments": _ARGUMENTS}}
        calls = [_with_arguments({**call, "type": "function"}, as_text)]
        result = {"role": "tool", "tool_call_id": "probe0001", "name": _NAME, "content": _RESULT}
        return [_ASKED, {"role": "assistant", "content": "", "tool_calls": calls}, result]

    def _reads_back(self, convention: Convention) -> bool:
        asked = self._try([_ASKED], tools=[_TOOL]) or ""
        probe = self._probe(as_text=self._form == "text")[:2]
        text = self._try(probe, tools=[_TOOL], add_generation_prompt=False) or ""
        parser = AnswerParser(self.thoughts, convention, [_NAME])
        begin = _shared(asked, text)
        while begin and text[begin - 1] not in ">]\n":  # the thoughts' mark may begin like a call's
            begin -= 1
        parser.push(text[begin:])
        parser.flush()
        return any(json.loads(call.arguments) == _ARGUMENTS for call in parser.calls)

    def _try(self, messages: Sequence[Message], **given: Any) -> str | None:
        try:
            return self._template.render(messages, **given)
        except TemplateError:  # such messages are not for this template
            return None


def _with_arguments(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    function = call["function"]
    if as_text:
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        function = {**function, "arguments": arguments}
    return {**call, "function": function}


def _read_calls(number: int, given: Any) -> list[dict[str, Any]]:
    """The calls of message `number`, with arguments as objects. Raises OptionError."""
    calls: list[dict[str, Any]] = []
    if not isinstance(given, list | tuple):
        raise OptionError(f"messages: tool_calls of message {number} is not a list")
    for call in cast("Sequence[Any]", given):
        outer = cast("Message", call if isinstance(call, Mapping) else {})
        inner = outer.get("function")
        function = cast("Message", inner if isinstance(inner, Mapping) else {})
        name, arguments = function.get("name"), function.get("arguments", {})
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except (ValueError, RecursionError):
                arguments = None
        if not isinstance(name, str) or not isinstance(arguments, Mapping):
            raise OptionError(
                f"messages: a call in message {number} is not of the form "
                '{"function": {"name": ..., "arguments": a JSON object}}'
            )
        known = {"id": outer["id"]} if "id" in outer else {}
        plain = dict(cast("Mapping[str, Any]", arguments))
        function = {"name": name, "arguments": plain}
        calls.append({**known, "type": "function", "function": function})
    return calls


def _shared(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
