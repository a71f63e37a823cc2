"""A conversation as a prompt: tools offered in it, and how its answer is to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from satchel.base.errors import OptionError
from satchel.engine.ask import Options
from satchel.text.answer import AnswerParser
from satchel.text.conventions import Convention, Marks

CHOICES = ("auto", "none", "required")


class ChatOptions(Options, total=False):
    """How to answer a conversation.

    Tools are in OpenAI's form: {"type": "function", "function": {"name", "description",
    "parameters"}}, parameters being a JSON schema. `tool_choice` is "auto", "none", "required", or
    {"type": "function", "function": {"name"}} for one that must be called.
    """

    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: str | Mapping[str, Any]
    parallel_tool_calls: bool  # True; False: one call at most, which ends the answer
    chat_template_kwargs: Mapping[str, Any]  # further names that the template may read


@dataclass(frozen=True)
class ChatPrompt:
    """The tokens that ask for an answer, and how that is to be taken apart."""

    tokens: list[int]
    text: str = ""  # that the template wrote
    thoughts: Marks | None = None
    is_thinking: bool = False  # the prompt has opened the thoughts
    convention: Convention | None = None  # of calls, where tools are offered
    names: frozenset[str] = frozenset()  # of the tools offered
    parallel: bool = True
    shown: frozenset[int] = frozenset()  # special tokens that the answer's reader must see

    def parser(self) -> AnswerParser | None:
        """A new one for one answer; None where there is nothing to take apart."""
        if self.thoughts is None and self.convention is None:
            return None
        return AnswerParser(
            self.thoughts,
            self.convention,
            self.names,
            is_thinking=self.is_thinking,
            parallel=self.parallel,
        )


@dataclass(frozen=True)
class Offer:
    """The tools that an answer may call."""

    tools: tuple[Mapping[str, Any], ...] = ()
    forced: frozenset[str] = frozenset()  # one of these must be called, if there are any
    parallel: bool = True
    template: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def names(self) -> frozenset[str]:
        """The tools' names."""
        return frozenset(tool["function"]["name"] for tool in self.tools)


def read_chat(options: Mapping[str, Any]) -> tuple[Offer, dict[str, Any]]:
    """What a chat's options offer, and the options that are left. Raises OptionError."""
    rest = dict(options)
    tools = _read_tools(rest.pop("tools", None) or ())
    choice = rest.pop("tool_choice", "auto")
    parallel = rest.pop("parallel_tool_calls", True)
    template = rest.pop("chat_template_kwargs", {})
    if not isinstance(parallel, bool):
        raise OptionError(f"parallel_tool_calls: {parallel!r} is neither True nor False")
    if not isinstance(template, Mapping):
        raise OptionError("chat_template_kwargs: not names with values")
    extra = cast("Mapping[str, Any]", template)
    for name in ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token"):
        if name in extra:
            raise OptionError(f"chat_template_kwargs: {name} is given to the template anyway")
    if choice == "none":
        return Offer(template=extra), rest
    return Offer(tools, _forced(tools, choice), parallel, extra), rest


def _forced(tools: Sequence[Mapping[str, Any]], choice: Any) -> frozenset[str]:
    """The names of the tools of which one must be called; none where it is up to the model."""
    names = frozenset(tool["function"]["name"] for tool in tools)
    if choice == "auto":
        return frozenset()
    if not tools:
        raise OptionError("tool_choice: there are no tools to choose from; give some")
    if choice == "required":
        return names
    given = cast("Mapping[str, Any]", choice if isinstance(choice, Mapping) else {})
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, Mapping):
        raise OptionError(
            f"tool_choice: not one of {', '.join(CHOICES)}, nor of the form "
            '{"type": "function", "function": {"name": ...}}'
        )
    name = cast("Mapping[str, Any]", function).get("name")
    if name not in names:
        raise OptionError(f"tool_choice: there is no tool {name!r}")
    return frozenset({str(name)})


def _read_tools(given: Any) -> tuple[Mapping[str, Any], ...]:
    """Tools, checked: each with a name of its own, and parameters that are a schema's object."""
    if isinstance(given, str | Mapping) or not isinstance(given, Sequence):
        raise OptionError("tools: not a list of tools")
    tools: list[Mapping[str, Any]] = []
    names: set[str] = set()
    for number, one in enumerate(cast("Sequence[Any]", given)):
        tool = cast("Mapping[str, Any]", one if isinstance(one, Mapping) else {})
        inner = tool.get("function")
        function = cast("Mapping[str, Any]", inner if isinstance(inner, Mapping) else {})
        name, parameters = function.get("name"), function.get("parameters", {})
        if tool.get("type") != "function" or not isinstance(name, str) or not name:
            raise OptionError(
                f"tools: number {number} is not of the form "
                '{"type": "function", "function": {"name": ..., "parameters": {...}}}'
            )
        if not isinstance(parameters, Mapping):
            raise OptionError(f"tools: the parameters of {name} are not a JSON schema's object")
        if name in names:
            raise OptionError(f"tools: there are two of the name {name}")
        names.add(name)
        tools.append(tool)
    return tuple(tools)
