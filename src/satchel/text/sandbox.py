"""Jinja for templates of unknown origin: the machine out of reach, time and space bounded.

Jinja's own immutable sandbox keeps a template from Python's inside and from changing what it is
given. It bounds neither time nor space, so three more things are done here, all before the program
runs. Loops and macros count each turn. Whatever makes a value (literals, operators, calls, filters,
slices) counts its size, beforehand where a small program can ask for a large one. Nothing is
computed at compile time. So each single operation is short, and between two the clock is looked at.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any, cast

import jinja2
from jinja2 import nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from satchel.base.errors import TemplateError
from satchel.text.budget import INT_BITS, Budget

SOURCE_SIZE = 1 << 19
WIDTH = 1000  # the widest padding or indentation

# What a template can make Python raise; all of it is the template's fault.
_FAULTS = (
    jinja2.TemplateError,
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
# Filters that need more than linear time, or make a prompt that differs from one run to the next.
_WITHOUT_FILTERS = ("pprint", "random", "striptags", "urlize", "wordwrap")
_WITHOUT_METHODS = ("encode", "from_bytes", "to_bytes", "translate")
_WIDE_PERCENT = re.compile(r"%[^%a-zA-Z]*(\*|\d{4,})")
_WIDE_FORMAT = re.compile(r"\{[^{}]*:[^{}]*(\{|\d{4,})")

_budget: ContextVar[Budget] = ContextVar("budget")


class Program:
    """A compiled chat template."""

    def __init__(self, source: str) -> None:
        """Raises TemplateError, with the line, when the source is not sound."""
        if len(source) > SOURCE_SIZE:
            raise TemplateError(f"the chat template is longer than {SOURCE_SIZE} characters")
        environment = _Environment()
        try:
            tree = _Counted().visit(environment.parse(source))
            tree.set_environment(environment)
            code = environment.compile(tree)
        except jinja2.TemplateSyntaxError as error:
            line = f"line {error.lineno}: {_one_line(error)}"
            raise TemplateError(f"the chat template is broken in {line}") from None
        except _FAULTS as error:
            raise TemplateError(f"the chat template is broken: {_one_line(error)}") from None
        self._template = jinja2.Template.from_code(
            environment, code, environment.make_globals(None)
        )

    def run(self, names: Mapping[str, Any]) -> str:
        """The text that the program prints. Raises TemplateError."""
        token = _budget.set(Budget())
        try:
            return self._template.render(names)
        except _Refusal as error:
            raise TemplateError(f"the chat template refuses: {_one_line(error)}") from None
        except _FAULTS as error:
            raise TemplateError(f"the chat template fails: {_one_line(error)}") from None
        finally:
            _budget.reset(token)


class _Refusal(jinja2.TemplateError):
    """The template itself says that it can't render these messages."""


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 300 else f"{text[:300]}..."


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with everything that makes a value counted."""

    intercepted_binops = frozenset({"+", "-", "*", "/", "//", "%", "**"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            finalize=_count_output,
            extensions=["jinja2.ext.loopcontrols", _Generation],
        )
        known = cast("dict[str, Any]", self.globals)
        del known["lipsum"]
        known |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}
        self.filters["tojson"] = _to_json
        for name in _WITHOUT_FILTERS:
            del self.filters[name]
        self.filters = {name: _counted(name, made) for name, made in self.filters.items()}
        self.tests = {name: _counted(name, made) for name, made in self.tests.items()}

    def tick(self, size: int) -> None:
        """A loop or a macro begins a turn that prints `size` characters of its own."""
        _budget.get().spend(size)

    def made(self, value: Any) -> Any:
        """Count a value that was made, and pass it on."""
        _budget.get().check(value)
        return value

    def concat_values(self, *values: Any) -> str:
        """The operator ~."""
        budget = _budget.get()
        budget.foresee(sum(map(budget.size, values)))
        return self.made("".join(map(str, values)))

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """A call of a function or method."""
        method = getattr(obj, "__wrapped__", obj)
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            args = _foresee_method(owner, method.__name__, args, kwargs)
        return self.made(super().call(context, obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """One of the operators + - * / // % **."""
        budget = _budget.get()
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _foresee_bits(left.bit_length() * abs(right))
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _foresee_bits(left.bit_length() + right.bit_length())
        elif operator == "*":
            times = right if isinstance(right, int) else left
            value = left if isinstance(right, int) else right
            if isinstance(times, int):
                budget.foresee(budget.size(value) * max(times, 0))
        elif operator == "%" and isinstance(left, str):
            _refuse_wide(_WIDE_PERCENT, left)
        return self.made(super().call_binop(context, operator, left, right))

    def getitem(self, obj: Any, argument: Any) -> Any:
        """obj[argument]; a slice makes a new value."""
        value = super().getitem(obj, argument)
        return self.made(value) if isinstance(argument, slice) else value

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Whether a template may reach an attribute."""
        return attr not in _WITHOUT_METHODS and super().is_safe_attribute(obj, attr, value)


class _Counted(NodeTransformer):
    """Writes the counting into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - the visitor's way
        return self._with_tick(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:  # noqa: N802
        return self._with_tick(node)

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return _call("made", [self.generic_visit(node)], node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        return _call("made", [self.generic_visit(node)], node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        visited = self.generic_visit(node)
        return _call("made", [visited], node) if node.ctx == "load" else visited

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _call("concat_values", node.nodes, node)

    def _with_tick(self, node: nodes.For | nodes.Macro | nodes.CallBlock) -> nodes.Node:
        printed = sum(len(text.data) for text in node.find_all(nodes.TemplateData))
        self.generic_visit(node)
        tick = nodes.ExprStmt(_call("tick", [nodes.Const(printed + 1)], node))
        node.body.insert(0, tick.set_lineno(node.lineno))
        return node


def _call(method: str, args: Iterable[nodes.Node], at: nodes.Node) -> nodes.Call:
    """A call of a method of the environment, which no name in a template can hide."""
    call = nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)
    call.set_lineno(at.lineno)
    return call


class _Generation(Extension):
    """{% generation %} marks what the model wrote, for training: here it is only what it holds."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's way

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@pass_context
def _count_output(_: Context, value: Any) -> Any:
    """Count what is about to be printed. (It takes a context so that it never runs at compile.)"""
    budget = _budget.get()
    budget.spend(budget.size(value))
    return value


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or test that counts what it makes, and foresees what may be large."""

    @functools.wraps(function)  # keeps Jinja's mark of what it passes first
    def counted(*args: Any, **kwargs: Any) -> Any:
        budget = _budget.get()
        budget.spend(1)
        passed = 1 if hasattr(function, "jinja_pass_arg") else 0
        if len(args) > passed:
            value = args[passed]
            given = _foresee_filter(name, value, args[passed + 1 :], kwargs)
            args = (*args[:passed], *given)
        made = function(*args, **kwargs)
        budget.check(made)
        return made

    return counted


def _foresee_filter(
    name: str, value: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Refuse a filter that would make too large a value; gives its arguments, value first."""
    given = (*args, *kwargs.values())
    if name == "format" and isinstance(value, str):
        _refuse_wide(_WIDE_PERCENT, value)
    elif name == "replace":
        _foresee_replace(str(value), [str(text) for text in given[:2]])
    elif name == "join" and not isinstance(value, str | jinja2.Undefined):
        items = list(cast("Iterable[Any]", value))
        _foresee_join(str(given[0]) if given else "", items)
        return (items, *args)
    elif name in ("center", "indent", "batch", "slice"):
        lines = value.count("\n") + 1 if name == "indent" and isinstance(value, str) else 1
        _foresee_widths(given, lines)
    elif name == "sum" and not all(isinstance(item, int | float | str) for item in given):
        raise TemplateError("the chat template sums up what are no numbers")
    return (value, *args)


def _foresee_method(
    owner: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Any, ...]:
    """Refuse a method of a text that would make too large a value; gives its arguments."""
    given = (*args, *kwargs.values())
    if name == "join" and args and not isinstance(args[0], str):
        items = list(args[0])
        _foresee_join(owner, items)
        return (items, *args[1:])
    if name == "join" and args:
        _foresee_join(owner, args[0])
    elif name == "replace":
        _foresee_replace(owner, [str(text) for text in given[:2]])
    elif name in ("format", "format_map"):
        _refuse_wide(_WIDE_FORMAT, owner)
    elif name in ("center", "ljust", "rjust", "zfill"):
        _foresee_widths(given, 1)
    elif name == "expandtabs":
        _foresee_widths(given, owner.count("\t"))
    return args


def _foresee_join(separator: str, items: Iterable[Any]) -> None:
    budget = _budget.get()
    budget.foresee(sum(budget.size(item) + len(separator) for item in items))


def _foresee_replace(text: str, texts: list[str]) -> None:
    if len(texts) == 2:
        old, new = texts
        _budget.get().foresee(len(text) + text.count(old) * len(new))


def _foresee_widths(given: Iterable[Any], lines: int) -> None:
    for width in given:
        if isinstance(width, int) and width > WIDTH:
            raise TemplateError(f"the chat template asks for a width of more than {WIDTH}")
        size = len(width) if isinstance(width, str) else WIDTH
        _budget.get().foresee(lines * size)


def _foresee_bits(bits: int) -> None:
    if bits > INT_BITS:
        raise TemplateError("the chat template computes too large a number")


def _refuse_wide(pattern: re.Pattern[str], text: str) -> None:
    if pattern.search(text):
        raise TemplateError(f"the chat template asks for a width of more than {WIDTH - 1}")


def _raise_exception(message: object) -> None:
    """How templates say that messages are not in the order that the model knows."""
    raise _Refusal(str(message))


def _strftime_now(pattern: str) -> str:
    """The local time, as strftime writes it."""
    _refuse_wide(_WIDE_PERCENT, pattern)
    return datetime.datetime.now().strftime(pattern)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as the models saw it in training: no escapes for HTML, letters as they are."""
    if indent is not None:
        _foresee_widths((indent,), 1)
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    chunks: list[str] = []
    for chunk in encoder.iterencode(value):
        _budget.get().spend(len(chunk))
        chunks.append(chunk)
    return "".join(chunks)
