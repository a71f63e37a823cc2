"""How models write their thoughts and their calls of tools; a chat template tells which way.

    way              a template with            writes a call as
    mistral          [TOOL_CALLS]               [TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}]
    mistral-named    that, and [ARGS]           [TOOL_CALLS]f[ARGS]{"a": 1}
    pythonic-marked  <|tool_call_start|>,       <|tool_call_start|>[f(a=1), g()]<|tool_call_end|>,
                     <|tool_list_start|>        or without the marks
                     or List of tools: [
    pythonic         [func_name1(               [f(a=1), g()]
    hermes           <tool_call>                <tool_call>
                                                {"name": "f", "arguments": {"a": 1}}
                                                </tool_call>
    gemma            tool_code                  f(a=1) in a fenced block of tool_code, or an object
                                                as llama-3's in one of json
    function-gemma,  <start_function_call>,     <start_function_call>call:f{a:1,b:<escape>x<escape>}
    gemma-4          or <|tool_call>            <end_function_call>, or with marks of its own
    llama-3          <|python_tag|>,            {"name": "f", "parameters": {"a": 1}}, perhaps
                     or {"name": function name, after <|python_tag|>
                     "parameters"

The first of these that fits counts. Sources: the templates of Mistral-Nemo and Mistral-Small-3.2,
LFM2 and Llama-4, Qwen 2.5 and 3 and Hermes 2 Pro, the guides of Gemma 3 and FunctionGemma (at
https://ai.google.dev/gemma/docs), Gemma 4, Llama 3.1 to 3.3.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from satchel.text.python_calls import python_text
from satchel.text.quoted_values import quoted_text


@dataclass(frozen=True)
class Marks:
    """What stands around thoughts."""

    opener: str
    closer: str


@dataclass(frozen=True)
class Opening:
    """What may follow an opener of calls: JSON, and Python in a list.

    With `named`, a name and one of these marks before the arguments, too; with `is_code`, lines of
    Python; with `quote`, only `call:` and a name before arguments whose texts stand between these.
    Where an opener is not `is_marked`, other text may begin so: then only calls of tools that were
    offered count.
    """

    is_marked: bool = True
    closer: str = ""
    named: tuple[str, ...] = ()
    is_code: bool = False
    quote: str = ""


Call = tuple[str, Mapping[str, object]]  # a name, and arguments


@dataclass(frozen=True)
class Convention:
    """One way to write calls."""

    name: str
    signs: tuple[str, ...]  # any of them in a template means this convention
    not_signs: tuple[str, ...]  # what only templates of other ways have
    marked: Mapping[str, Opening]
    write: Callable[[Sequence[Call]], str]
    bare: Mapping[str, Opening] = field(default_factory=dict[str, Opening])  # begin an answer only

    def openings(self, fresh: bool) -> Mapping[str, Opening]:
        """What opens calls here; `fresh`: where nothing but calls was said before."""
        return {**self.marked, **self.bare} if fresh else self.marked

    @property
    def marks(self) -> tuple[str, ...]:
        """The texts that must be seen in an answer, though they may be special tokens."""
        found = [mark for o, opening in self.marked.items() for mark in (o, opening.closer)]
        inner = [mark for o in self.marked.values() for mark in (*o.named, o.quote)]
        return tuple(mark for mark in (*found, *inner) if mark)


def _object(call: Call, arguments: str) -> str:
    return json.dumps({"name": call[0], arguments: call[1]}, ensure_ascii=False)


def _hermes(calls: Sequence[Call]) -> str:
    return "\n".join(f"<tool_call>\n{_object(call, 'arguments')}\n</tool_call>" for call in calls)


def _mistral(calls: Sequence[Call]) -> str:
    return f"[TOOL_CALLS][{', '.join(_object(call, 'arguments') for call in calls)}]"


def _mistral_named(calls: Sequence[Call]) -> str:
    return "".join(
        f"[TOOL_CALLS]{name}[ARGS]{json.dumps(arguments, ensure_ascii=False)}"
        for name, arguments in calls
    )


def _llama_3(calls: Sequence[Call]) -> str:
    return "; ".join(_object(call, "parameters") for call in calls)


def _python(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{k}={python_text(v)}' for k, v in call[1].items())})"


def _pythonic(calls: Sequence[Call]) -> str:
    return f"[{', '.join(map(_python, calls))}]"


def _marked_pythonic(calls: Sequence[Call]) -> str:
    return f"<|tool_call_start|>{_pythonic(calls)}<|tool_call_end|>"


def _gemma(calls: Sequence[Call]) -> str:
    lines = "\n".join(map(_python, calls))
    return f"```tool_code\n{lines}\n```"


def _quoted(opener: str, quote: str, closer: str) -> Callable[[Sequence[Call]], str]:
    def write(calls: Sequence[Call]) -> str:
        texts = (f"call:{name}{quoted_text(dict(arguments), quote)}" for name, arguments in calls)
        return "".join(f"{opener}{text}{closer}" for text in texts)

    return write


_XML = (
    "<function=",
    "<arg_key>",
    "<parameter",
)  # Qwen3-Coder's and GLM's ways, which we don't read
_NAMED = Opening(named=("[ARGS]", "[CALL_ID]"))
_BARE = Opening(is_marked=False)
_LFM2 = {"<|tool_call_start|>": Opening(closer="<|tool_call_end|>")}

CONVENTIONS = (
    Convention("mistral", ("[TOOL_CALLS]",), ("[ARGS]",), {"[TOOL_CALLS]": _NAMED}, _mistral),
    Convention("mistral-named", ("[TOOL_CALLS]",), (), {"[TOOL_CALLS]": _NAMED}, _mistral_named),
    Convention(
        "pythonic-marked", ("<|tool_call_start|>", "<|tool_list_start|>", "List of tools: ["), (),
        _LFM2, _marked_pythonic, {"[": _BARE},
    ),
    Convention("pythonic", ("[func_name1(",), (), _LFM2, _pythonic, {"[": _BARE}),
    Convention(
        "hermes", ("<tool_call>",), _XML,
        {"<tool_call>": Opening(closer="</tool_call>")}, _hermes,
    ),
    Convention(
        "gemma", ("tool_code",), (),
        {"```tool_code": Opening(closer="```", is_code=True),
         "```json": Opening(is_marked=False, closer="```")},
        _gemma, {"[": _BARE, "{": _BARE},
    ),
    *(
        Convention(
            name, (opener,), (), {opener: Opening(closer=closer, quote=quote)},
            _quoted(opener, quote, closer),
        )
        for name, opener, quote, closer in (
            ("function-gemma", "<start_function_call>", "<escape>", "<end_function_call>"),
            ("gemma-4", "<|tool_call>", '<|"|>', "<tool_call|>"),
        )
    ),
    Convention(
        "llama-3", ("<|python_tag|>", '{"name": function name, "parameters"'), _XML,
        {"<|python_tag|>": Opening()}, _llama_3, {"{": _BARE},
    ),
)  # fmt: skip

THOUGHTS = (
    Marks("<think>", "</think>"),
    Marks("[THINK]", "[/THINK]"),
    Marks("<seed:think>", "</seed:think>"),
    Marks("<|START_THINKING|>", "<|END_THINKING|>"),
)


def find_convention(template: str) -> Convention | None:
    """The way in which a chat template's model writes calls; None for one that is not known."""
    for convention in CONVENTIONS:
        has_sign = any(sign in template for sign in convention.signs)
        if has_sign and not any(sign in template for sign in convention.not_signs):
            return convention
    return None


def find_thoughts(template: str) -> Marks | None:
    """What stands around the thoughts of a chat template's model; None where it has no marks."""
    return next((marks for marks in THOUGHTS if marks.closer in template), None)
