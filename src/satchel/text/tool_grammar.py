"""Grammars by which an answer must call tools, in the way that its model writes calls.

They are llguidance's Lark (https://github.com/guidance-ai/llguidance/blob/main/docs/syntax.md).
Arguments keep to the tools' JSON schemas.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from satchel.base.errors import OptionError, UnsupportedError
from satchel.text.conventions import Convention, Marks
from satchel.text.grammar import JSON_STYLE, Grammar, matcher
from satchel.text.python_calls import is_name
from satchel.text.schema import read_schema

Tool = Mapping[str, Any]


def call_grammar(
    convention: Convention, tools: Sequence[Tool], *, parallel: bool, opened: str
) -> Grammar:
    """Calls of these tools, one or (with `parallel`, where the way allows it) more.

    `opened`: what the prompt has of them already, a special token that no text can spell. Raises
    OptionError for parameters that are no schema that can be kept to, and UnsupportedError for what
    the way can't write.
    """
    way = _way(convention)
    more = parallel and way.between and not (opened and opened in way.between)
    calls = " ".join(["call", f"({_text(way.between)} call)*" if more else "", _text(way.closer)])
    start = f"start: {_text(way.opener.removeprefix(opened))} {calls}"
    return _lark([start, *_calls(way, tools)])


def free_grammar(convention: Convention, tools: Sequence[Tool], *, parallel: bool) -> Grammar:
    """Anything, but where it calls tools, as in `call_grammar`; nothing comes after calls then."""
    way, mark = _way(convention), opener_of(convention)
    more = f"({_text(way.between)} call)*" if parallel and way.between else ""
    rest = _text(way.opener.removeprefix(mark))
    bare = "".join(map(re.escape, convention.bare))
    any_text = rf"([^\s{bare}](?s:.*))?" if bare else "(?s:.*)"
    others = "".join(f" & ~/(?s:.*){_regex(one)}(?s:.*)/" for one in convention.marked)
    lines = [
        f"start: FREE | {'lead' if mark else ''} {rest} call {more} {_text(way.closer)}",
        f"FREE: /{any_text}/{others}",
    ]
    if mark:
        lines.append(f"lead[lazy]: /{any_text}{_regex(mark)}/")
    return _lark([*lines, *_calls(way, tools)])


def _calls(way: Way, tools: Sequence[Tool]) -> Iterator[str]:
    yield f"call: {' | '.join(f'call{i}' for i in range(len(tools)))}"
    for number, tool in enumerate(tools):
        yield from way.call(number, tool["function"]["name"], _parameters(tool))


def _lark(lines: Iterable[str]) -> Grammar:
    return Grammar("tools", matcher().grammar_from_lark("\n".join(lines)))


def _regex(text: str) -> str:
    return re.escape(text).replace("/", r"\/")


def compose(answers: Sequence[Grammar], thoughts: Marks | None, *, is_thinking: bool) -> Grammar:
    """One of several grammars, after thoughts, which are free; those that have begun must end."""
    lark: list[str] = []
    first = ""
    if thoughts:
        first = (
            "thoughts SPACES?" if is_thinking else f"({_text(thoughts.opener)} thoughts SPACES?)?"
        )
        lark = [f"thoughts[lazy]: /(?s:.*){_regex(thoughts.closer)}/", r"SPACES: /[ \n]{1,8}/"]
    names = [f"answer{number}" for number in range(len(answers))]
    lark = [f"start: {first} ({' | '.join(f'@{name}' for name in names)})", *lark]
    grammars: list[Any] = [{"lark_grammar": "\n".join(lark)}]
    for name, answer in zip(names, answers, strict=True):
        inner, *others = _grammars(answer.text)
        grammars += [{**inner, "name": name}, *others]
    return Grammar(answers[0].field, json.dumps({"grammars": grammars}))


class Way(ABC):
    """How calls are written: what opens them, stands between, and closes them."""

    def __init__(self, opener: str = "", between: str = "", closer: str = "") -> None:
        """Without `between` there is but one call."""
        self.opener, self.between, self.closer = opener, between, closer

    @abstractmethod
    def call(self, number: int, name: str, parameters: dict[str, Any]) -> Iterator[str]:
        """The rules of call `number`."""


class _Json(Way):
    """Arguments that are JSON, what stands before them, made of the tool's name, and after them."""

    def __init__(self, before: Callable[[str], str], after: str, **marks: str) -> None:
        super().__init__(**marks)
        self.before, self.after = before, after

    def call(self, number: int, name: str, parameters: dict[str, Any]) -> Iterator[str]:
        after = _text(self.after)
        yield f"call{number}: {_text(self.before(name))} args{number} {after}".rstrip()
        yield f"args{number}: {_json(parameters)}"


class _Python(Way):
    """f(a=1, b="x"), with arguments in the order of their schema."""

    def call(self, number: int, name: str, parameters: dict[str, Any]) -> Iterator[str]:
        fields = cast("dict[str, Any]", parameters.get("properties", {}))
        required = cast("list[str]", parameters.get("required", []))
        for one in (name, *fields):
            if not is_name(one):
                raise UnsupportedError(f"tools: {one!r} can't be written as a name of Python's")
        shared = {key: parameters[key] for key in ("$defs", "definitions") if key in parameters}
        yield f'call{number}: {_text(name + "(")} first{number}_0 ")"'
        for i, (field, schema) in enumerate(fields.items()):
            value = f"value{number}_{i}"
            yield f"{value}: {_json({**schema, **shared} if isinstance(schema, dict) else schema)}"
            for kind, comma in (("first", ""), ("rest", ", ")):
                given = f"{_text(f'{comma}{field}=')} {value} rest{number}_{i + 1}"
                left_out = "" if field in required else f" | {kind}{number}_{i + 1}"
                yield f"{kind}{number}_{i}: {given}{left_out}"
        yield f'first{number}_{len(fields)}: ""'
        yield f'rest{number}_{len(fields)}: ""'


def _named(name: str, arguments: str = "arguments") -> str:
    return f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{arguments}": '


_WAYS: dict[str, Way] = {
    "hermes": _Json(
        lambda name: f"\n{_named(name)}", "}\n</tool_call>",
        opener="<tool_call>", between="\n<tool_call>",
    ),
    "mistral": _Json(_named, "}", opener="[TOOL_CALLS][", between=", ", closer="]"),
    "mistral-named": _Json(
        lambda name: f"{name}[ARGS]", "", opener="[TOOL_CALLS]", between="[TOOL_CALLS]"
    ),
    "llama-3": _Json(lambda name: _named(name, "parameters"), "}"),
    "pythonic": _Python(opener="[", between=", ", closer="]"),
    "pythonic-marked": _Python(opener="<|tool_call_start|>[", between=", ", closer="]"),
    "gemma": _Python(opener="```tool_code\n", between="\n", closer="\n```"),
}  # fmt: skip


def _way(convention: Convention) -> Way:
    if convention.name not in _WAYS:
        raise UnsupportedError(
            f"tools: calls in the way of {convention.name} can't be forced, nor kept to a schema, "
            "since their texts stand between special tokens"
        )
    return _WAYS[convention.name]


def opener_of(convention: Convention) -> str:
    """The mark with which calls that must come begin, "" where they have none."""
    opener = _WAYS[convention.name].opener if convention.name in _WAYS else ""
    return next((mark for mark in convention.marks if opener.startswith(mark)), "")


def _parameters(tool: Tool) -> dict[str, Any]:
    """A tool's parameters as a schema for an object that has no others. Raises OptionError."""
    function = cast("Mapping[str, Any]", tool["function"])
    try:
        schema = read_schema(function.get("parameters") or {"properties": {}})
    except OptionError as error:
        reason = str(error).removeprefix("json_schema: ")
        raise OptionError(f"tools: the parameters of {function['name']}: {reason}") from None
    if schema.get("type", "object") != "object":
        raise OptionError(f"tools: the parameters of {function['name']} are not of type object")
    if "properties" in schema:
        schema = {"additionalProperties": False, **schema}
    return {"type": "object", **schema}


def _json(schema: Any) -> str:
    if isinstance(schema, dict):
        schema = {**cast("dict[str, Any]", schema), "x-guidance": JSON_STYLE}
    return f"%json {json.dumps(schema)}"


def _grammars(text: str) -> list[dict[str, Any]]:
    """The parts of a grammar: it is either Lark, or a list of grammars as JSON."""
    if not text.startswith("{"):
        return [{"lark_grammar": text}]
    return cast("list[dict[str, Any]]", json.loads(text)["grammars"])


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
