"""A conversation as a prompt: tools offered in it, and how its answer is to be read."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from satchel.base.errors import OptionError, UnsupportedError
from satchel.engine.ask import Message, Options
from satchel.text.answer import AnswerParser
from satchel.text.conventions import Convention, Marks
from satchel.text.grammar import Grammar
from satchel.text.tokenizer import Tokenizer
from satchel.text.tool_grammar import call_grammar, compose, free_grammar, opener_of
from satchel.text.tool_template import ToolTemplate

CHOICES = ("auto", "none", "required")


class ChatOptions(Options, total=False):
    """How to answer a conversation.

    Tools are in OpenAI's form: {"type": "function", "function": {"name", "description",
    "parameters"}}, parameters being a JSON schema, to which calls that are forced keep, and with
    "strict": true in the function all. `tool_choice` is "auto", "none", "required", or
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
    tools: tuple[Mapping[str, Any], ...] = ()
    parallel: bool = True
    shown: frozenset[int] = frozenset()  # special tokens that the answer's reader must see
    calls: Grammar | None = None  # that must come
    begun: str = ""  # what of these is in the prompt

    @property
    def is_strict(self) -> bool:
        """Whether calls must keep to their tools' parameters, though they need not come."""
        return any(tool["function"].get("strict") for tool in self.tools)

    def parser(self) -> AnswerParser | None:
        """A new one for one answer; None where there is nothing to take apart."""
        if self.thoughts is None and self.convention is None:
            return None
        parser = AnswerParser(
            self.thoughts,
            self.convention,
            [tool["function"]["name"] for tool in self.tools],
            is_thinking=self.is_thinking,
            parallel=self.parallel,
        )
        parser.push(self.begun)
        return parser


@dataclass(frozen=True)
class Offer:
    """The tools that an answer may call."""

    tools: tuple[Mapping[str, Any], ...] = ()
    forced: tuple[Mapping[str, Any], ...] = ()  # one of these must be called, if there are any
    parallel: bool = True
    template: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Chats:
    """Makes prompts of conversations with one model."""

    def __init__(
        self, template: ToolTemplate, tokenizer: Tokenizer, encode: Callable[[str], list[int]]
    ) -> None:
        """`encode` gives a prompt's tokens."""
        self._template, self._tokenizer, self._encode = template, tokenizer, encode

    def prompt(
        self, messages: Sequence[Message], options: Mapping[str, Any]
    ) -> tuple[ChatPrompt, dict[str, Any]]:
        """The prompt that asks for an answer, and the options that are left.

        Raises OptionError, UnsupportedError, TemplateError, TextError and ContextLengthError.
        """
        offer, rest = read_chat(options)
        template = self._template
        text = template.render(messages, offer.tools, offer.template)
        thoughts = template.thoughts
        convention = template.convention if offer.tools else None
        marks = [*(convention.marks if convention else ())]
        if thoughts:
            marks += [thoughts.opener, thoughts.closer]
        is_thinking = thoughts is not None and text.rstrip().endswith(thoughts.opener)
        calls, begun = None, ""
        if convention and offer.forced:  # such calls are made without thoughts
            if thoughts and is_thinking:
                text = f"{text.rstrip()}\n\n{thoughts.closer}\n\n"
                is_thinking = False
            if self._is_hidden(opener_of(convention)):
                begun = opener_of(convention)
            calls = call_grammar(convention, offer.forced, parallel=offer.parallel, opened=begun)
            text += begun
        tokens = map(self._tokenizer.special, marks)
        shown = frozenset(token for token in tokens if token is not None)
        prompt = ChatPrompt(
            self._encode(text), text, thoughts, is_thinking, convention, offer.tools,
            offer.parallel, shown, calls, begun,
        )  # fmt: skip
        return prompt, rest

    def constraint(self, chat: ChatPrompt, asked: Grammar | None) -> Grammar | None:
        """What an answer must keep to; `asked` is what its options say of that.

        A grammar that was asked for is one for the answer proper, after the thoughts, and instead
        of calls of tools. Raises OptionError for what does not go together.
        """
        if asked is None and (chat.calls or not chat.is_strict):
            return chat.calls
        if asked and chat.calls:
            raise OptionError(f"{asked.field}: tool_choice forces a call; leave one of them out")
        answers, thoughts = [asked] if asked else [], chat.thoughts
        field = asked.field if asked else "tools: strict"
        if chat.convention:
            if self._is_hidden(opener_of(chat.convention)):
                raise UnsupportedError(
                    f"{field}: this model can't keep to it where it may call tools; "
                    "force a call by tool_choice, or offer none"
                )
            calls = partial(call_grammar, opened="") if asked else free_grammar
            answers.append(calls(chat.convention, chat.tools, parallel=chat.parallel))
        if thoughts and (self._is_hidden(thoughts.opener) or self._is_hidden(thoughts.closer)):
            if chat.is_thinking:
                raise UnsupportedError(
                    f"{field}: this model can't keep to it while it thinks; "
                    "turn that off by chat_template_kwargs"
                )
            thoughts = None
        if thoughts is None and len(answers) == 1:
            return answers[0]
        return compose(answers, thoughts, is_thinking=chat.is_thinking)

    def _is_hidden(self, mark: str) -> bool:
        """Whether a mark is a token that no text can spell."""
        token = self._tokenizer.special(mark)
        return token is not None and self._tokenizer.is_special(token)


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


def _forced(tools: tuple[Mapping[str, Any], ...], choice: Any) -> tuple[Mapping[str, Any], ...]:
    """The tools of which one must be called; none where it is up to the model."""
    if choice == "auto":
        return ()
    if not tools:
        raise OptionError("tool_choice: there are no tools to choose from; give some")
    if choice == "required":
        return tools
    given = cast("Mapping[str, Any]", choice if isinstance(choice, Mapping) else {})
    function = given.get("function")
    if given.get("type") != "function" or not isinstance(function, Mapping):
        raise OptionError(
            f"tool_choice: not one of {', '.join(CHOICES)}, nor of the form "
            '{"type": "function", "function": {"name": ...}}'
        )
    name = cast("Mapping[str, Any]", function).get("name")
    forced = tuple(tool for tool in tools if tool["function"]["name"] == name)
    if not forced:
        raise OptionError(f"tool_choice: there is no tool {name!r}")
    return forced


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
        try:
            json.dumps(tool, ensure_ascii=False, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            raise OptionError(f"tools: number {number} can't be written as JSON") from None
        names.add(name)
        tools.append(tool)
    return tuple(tools)
