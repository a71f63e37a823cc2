"""The kernel language's intermediate form: structured, immutable, with a text form that reads back.

A function is a sequence of statements. A statement is an `Inst` (one op, at most one result) or a
`Loop`, which carries
values from one iteration to the next. Every value is defined once, before its uses; there is no
memory but what `load`
and `store` touch, and no jump.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from satchel.base.dtypes import BY_NAME, DType
from satchel.base.errors import KernelError

ptr = DType("ptr", "p", 64)
DTYPES = {**BY_NAME, "ptr": ptr}


@dataclass(frozen=True)
class Type:
    """`lanes` elements of `dtype` in one register (or several, where the target's are narrower)."""

    dtype: DType
    lanes: int = 1

    @property
    def bits(self) -> int:
        return self.dtype.bits * self.lanes

    def __str__(self) -> str:
        return f"{self.dtype}x{self.lanes}" if self.lanes > 1 else str(self.dtype)

    __repr__ = __str__


def parse_type(text: str) -> Type:
    """The inverse of str(Type). Raises KernelError."""
    match = re.fullmatch(r"([a-z]+\d*)(?:x(\d+))?", text)
    if match is None or match[1] not in DTYPES:
        raise KernelError(f"{text!r} is no type")
    return Type(DTYPES[match[1]], int(match[2] or 1))


class Value:
    """What an instruction makes; its identity is its name."""

    __slots__ = ("type",)

    def __init__(self, kind: Type) -> None:
        self.type = kind


Attrs = tuple[tuple[str, Any], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Inst:
    """`result = op(args)`; attrs are build-time constants (lane numbers, a literal, an intrinsic's
    name).
    """

    op: str
    args: tuple[Value, ...] = ()
    attrs: Attrs = ()
    result: Value | None = None

    def attr(self, name: str) -> Any:
        return dict(self.attrs)[name]


@dataclass(frozen=True, eq=False, slots=True)
class Loop:
    """`for index in lo, lo + step .. < hi`: params are inits at first, then each time the yields
    of the time before.
    """

    index: Value
    bounds: tuple[Value, Value, Value]
    params: tuple[Value, ...]
    inits: tuple[Value, ...]
    body: tuple[Stmt, ...]
    yields: tuple[Value, ...]
    results: tuple[Value, ...]


Stmt = Inst | Loop


@dataclass(frozen=True, eq=False)
class Function:
    """A kernel for one target, or at a stage on the way there."""

    name: str
    params: tuple[Value, ...]
    body: tuple[Stmt, ...] = field(default=())

    def __str__(self) -> str:
        return "\n".join(_function_lines(self)) + "\n"


def instructions(body: tuple[Stmt, ...]) -> Iterator[Inst]:
    """Every instruction, those in loops too, in the order of the text."""
    for stmt in body:
        if isinstance(stmt, Loop):
            yield from instructions(stmt.body)
        else:
            yield stmt


def rebuild(
    body: tuple[Stmt, ...],
    expand: Callable[[Inst, tuple[Value, ...]], tuple[list[Stmt], Value | None]],
    names: dict[Value, Value],
    fresh: Callable[[Type], Value] = Value,
) -> tuple[Stmt, ...]:
    """A copy of body in which each instruction is what expand makes of it; `names` maps old values
    to new, fresh ones.
    """
    out: list[Stmt] = []
    for stmt in body:
        if isinstance(stmt, Inst):
            made, value = expand(stmt, tuple(names[a] for a in stmt.args))
            out += made
            if stmt.result is not None and value is not None:
                names[stmt.result] = value
            continue
        inits = tuple(names[v] for v in stmt.inits)
        for own in (stmt.index, *stmt.params, *stmt.results):
            names[own] = fresh(own.type)
        inner = rebuild(stmt.body, expand, names, fresh)
        out.append(
            Loop(
                names[stmt.index],
                (names[stmt.bounds[0]], names[stmt.bounds[1]], names[stmt.bounds[2]]),
                tuple(names[v] for v in stmt.params),
                inits,
                inner,
                tuple(names[v] for v in stmt.yields),
                tuple(names[v] for v in stmt.results),
            )
        )
    return tuple(out)


# ---- text ----------------------------------------------------------------------------------------


def _function_lines(f: Function) -> Iterator[str]:
    names: dict[Value, str] = {}

    def define(value: Value) -> str:
        names[value] = f"%{len(names)}"
        return f"{names[value]}: {value.type}"

    def lines(body: tuple[Stmt, ...], indent: str) -> Iterator[str]:
        for s in body:
            if isinstance(s, Inst):
                words = " ".join([s.op, *(names[a] for a in s.args)])
                attrs = " {" + ", ".join(f"{k}={v!r}" for k, v in s.attrs) + "}" if s.attrs else ""
                made = f"{define(s.result)} = " if s.result is not None else ""
                yield f"{indent}{made}{words}{attrs}"
                continue
            bounds = " ".join(names[b] for b in s.bounds)
            inits = [names[i] for i in s.inits]
            carried = "".join(f", {define(p)} = {i}" for p, i in zip(s.params, inits, strict=True))
            yield f"{indent}loop {define(s.index)} = {bounds}{carried}"
            yield from lines(s.body, indent + "  ")
            yield f"{indent}yield" + "".join(f", {names[y]}" for y in s.yields)
            if s.results:
                yield f"{indent}then " + ", ".join(define(r) for r in s.results)

    yield f"kernel {f.name}(" + ", ".join(define(p) for p in f.params) + ")"
    yield from lines(f.body, "  ")


def parse(text: str) -> Function:
    """The inverse of str(Function). Raises KernelError, naming the line."""
    lines = [line for line in text.splitlines() if line.strip()]
    head = re.fullmatch(r"kernel (\w+)\((.*)\)", lines[0]) if lines else None
    if head is None:
        raise KernelError("a kernel's text starts with 'kernel name(params)'")
    reader = _Reader(lines)
    params = tuple(reader.define(p) for p in head[2].split(", ") if p)
    body = reader.body("  ")
    if reader.at != len(lines):
        raise reader.error(f"{lines[reader.at].strip()!r} belongs to no loop")
    return Function(head[1], params, body)


class _Reader:
    """Reads statements, one a line; deeper lines belong to the loop above them."""

    def __init__(self, lines: list[str]) -> None:
        self.lines, self.at = lines, 1
        self.values: dict[str, Value] = {}

    def error(self, what: str) -> KernelError:
        return KernelError(f"line {self.at + 1}: {what}")

    def next(self, start: str) -> list[str]:
        """The comma-separated words of the next line, which begins with `start`."""
        line = self.lines[self.at].strip() if self.at < len(self.lines) else ""
        if line.split(" ")[0].rstrip(",") != start:
            raise self.error(f"a loop's {start!r} is missing")
        self.at += 1
        return [word for word in line.removeprefix(start).strip(" ,").split(", ") if word]

    def define(self, text: str) -> Value:
        name, _, kind = text.partition(": ")
        if not re.fullmatch(r"%\d+", name) or name in self.values:
            raise self.error(f"{name!r} can't name a new value")
        self.values[name] = value = Value(parse_type(kind))
        return value

    def use(self, name: str) -> Value:
        if name not in self.values:
            raise self.error(f"{name} is used before it is made")
        return self.values[name]

    def body(self, indent: str) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        while self.at < len(self.lines) and self.lines[self.at].startswith(indent):
            line = self.lines[self.at][len(indent) :]
            if line.startswith("yield"):
                break
            out.append(self.loop(line, indent) if line.startswith("loop ") else self.inst(line))
        return tuple(out)

    def inst(self, line: str) -> Inst:
        match = re.fullmatch(r"(?:(%\d+: \w+) = )?(\w+)((?: %\d+)*)(?: \{(.*)\})?", line)
        if match is None:
            raise self.error(f"{line!r} is no statement")
        args = tuple(self.use(a) for a in match[3].split())
        attrs = self.attrs(match[4]) if match[4] else ()
        result = self.define(match[1]) if match[1] else None
        self.at += 1
        return Inst(match[2], args, attrs, result)

    def loop(self, line: str, indent: str) -> Loop:
        match = re.fullmatch(
            r"loop (%\d+: i64) = (%\d+) (%\d+) (%\d+)((?:, %\d+: \w+ = %\d+)*)", line
        )
        if match is None:
            raise self.error(f"{line!r} is no loop")
        pairs = [c.split(" = ") for c in match[5].split(", ")[1:]]
        inits = tuple(self.use(init) for _, init in pairs)
        bounds = (self.use(match[2]), self.use(match[3]), self.use(match[4]))
        index = self.define(match[1])
        params = tuple(self.define(p) for p, _ in pairs)
        self.at += 1
        body = self.body(indent + "  ")
        yields = tuple(self.use(y) for y in self.next("yield"))
        results = tuple(self.define(r) for r in self.next("then")) if yields else ()
        if not len(params) == len(yields) == len(results):
            raise self.error("a loop yields as many values as it carries")
        return Loop(index, bounds, params, inits, body, yields, results)

    def attrs(self, text: str) -> Attrs:
        try:
            call = ast.parse(f"f({text})", mode="eval").body
            pairs = call.keywords if isinstance(call, ast.Call) else []
            return tuple((k.arg or "", _literal(k.value, k.arg == "to")) for k in pairs)
        except (SyntaxError, ValueError) as e:
            raise self.error(f"{text!r} are no attributes: {e}") from None


def _literal(node: ast.expr, is_dtype: bool = False) -> Any:
    """A literal of an attribute; types, nan and inf are bare words."""
    match node:
        case ast.Name("nan" | "inf"):
            return float(node.id)
        case ast.Name():
            kind = parse_type(node.id)
            return kind.dtype if is_dtype else kind
        case ast.UnaryOp(ast.USub(), ast.Name("inf")):
            return float("-inf")
        case ast.Tuple():
            return tuple(_literal(e) for e in node.elts)
        case _:
            return ast.literal_eval(node)
