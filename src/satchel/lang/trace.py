"""The words of a kernel: loops, lanes, accs and rows. (Its values and their operators: values.py.)

A kernel is a Python function that is run once, on symbols, and what it does to them is written
down. Positional parameters are run-time, keyword-only ones build-time constants. `range` unrolls,
`loop` loops, `lanes` walks a length a register at a time. State that survives an iteration is an
`acc`; everything else is a value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from satchel.base import dtypes
from satchel.base.dtypes import BY_NAME, DType, f32, i1, i32, i64
from satchel.base.errors import KernelError
from satchel.lang.ir import Loop, Type, ptr
from satchel.lang.values import (
    LANES,
    Acc,
    Scope,
    Tracer,
    V,
    absolute,
    concat,
    convert,
    emit,
    full,
    is_number,
    match_lanes,
    maximum,
    minimum,
    native,
    select,
    splat,
    sqrt,
    table,
    tracer,
    tracing,
    value,
    where_traced,
)  # fmt: skip


def acc(dtype: DType = f32, lanes: int = LANES, init: float = 0) -> Acc:
    """An accumulator of so many lanes, at first `init` in each."""
    return Acc(full(dtype, init, lanes))


def index(x: Any) -> V:
    """A position or length: an i64."""
    x = convert(x, i64)
    if x.lanes > 1:
        raise KernelError(f"{where_traced()}: a position or length is a scalar, not {x.type}")
    return x


def loop(lo: Any, hi: Any = None, step: Any = 1) -> Iterator[V]:
    """A loop in the machine code: for i in loop(n), loop(lo, hi), loop(lo, hi, step). Its body is
    traced once.
    """
    lo, hi = (0, lo) if hi is None else (lo, hi)
    bounds = (index(lo), index(hi), index(step))
    t, scope = tracer(), Scope(where_traced())
    i = V(Type(i64), scope)
    t.scopes.append(scope)
    yield i
    if t.scopes[-1] is not scope:
        raise KernelError(f"{t.scopes[-1].where}: break and return do not leave a loop")
    scope.is_open = False
    t.scopes.pop()
    params, inits = (tuple(pair[side] for pair in scope.carried.values()) for side in (0, 1))
    yields = tuple(a.value for a in scope.carried)
    results = tuple(V(p.type, t.scopes[-1]) for p in params)
    t.scopes[-1].body.append(Loop(i, bounds, params, inits, tuple(scope.body), yields, results))
    for a, result in zip(scope.carried, results, strict=True):
        a.leave(result)


def when(cond: V) -> Iterator[None]:
    """for _ in when(cond): the body runs if cond holds."""
    for _ in loop(0, cond):
        yield


@dataclass(frozen=True)
class Span:
    """`count` neighbours from `at` on; a value read through it has LANES lanes, those past count
    are zero.
    """

    at: V
    count: int


def lanes(n: Any) -> Iterator[Span]:
    """All of 0..n, a register at a time, then one element at a time. The body is traced twice."""
    n = index(n)
    whole = n - n % LANES
    for at in loop(0, whole, LANES):
        yield Span(at, LANES)
    for at in loop(whole, n):
        yield Span(at, 1)


# ---- memory --------------------------------------------------------------------------------------


class Row:
    """Elements of one type, one after another: a kernel's argument, or what lies at a byte offset
    in one.
    """

    def __init__(self, base: V, dtype: DType, constant: bool) -> None:
        self.base, self.dtype, self.constant = base, dtype, constant

    def at(self, i: Any) -> Row:
        """The row that begins at element i."""
        return self.past((i if isinstance(i, int) else index(i)) * self.dtype.bytes)

    def past(self, n_bytes: Any, dtype: DType | None = None) -> Row:
        """The row of dtype that begins so many bytes further."""
        base = self.base if is_number(n_bytes, 0) else emit("offset", self.base, index(n_bytes))
        return Row(base, dtype or self.dtype, self.constant)

    def load(self, i: Any = 0, n: int = 1) -> V:
        """n neighbours from element i on."""
        return emit("load", self.at(i).base, type=Type(self.dtype, n), constant=self.constant)

    def store(self, x: Any, i: Any = 0) -> None:
        x = value(x, Type(self.dtype))
        if x.dtype is not self.dtype:
            raise KernelError(
                f"{where_traced()}: a row of {self.dtype} can't take {x.type}: convert it"
            )
        emit("store", x, self.at(i).base)

    def prefetch(self) -> None:
        """Asks for the cache line here; no harm where there is none."""
        emit("prefetch", self.base)

    def __getitem__(self, i: Any) -> V:
        if not isinstance(i, Span):
            return self.load(i)
        if i.count == LANES:
            return self.load(i.at, LANES)
        first = [0] + [1] * (LANES - 1)
        return emit("shuffle", self.load(i.at), value(0, Type(self.dtype)), lanes=tuple(first))

    def __setitem__(self, i: Any, x: Any) -> None:
        x = x.value if isinstance(x, Acc) else x
        if isinstance(i, Span):
            self.store(x if i.count == LANES else x[0], i.at)
        else:
            self.store(x, i)


@dataclass(frozen=True)
class RowOf:
    """What an annotation says of a row: its elements' type, and whether it stays as it is."""

    dtype: DType
    constant: bool


class In:
    """A row that the kernel reads, and that nobody writes meanwhile: `x: In.f32`."""

    i8: TypeAlias = Annotated[Row, RowOf(dtypes.i8, constant=True)]
    u8: TypeAlias = Annotated[Row, RowOf(dtypes.u8, constant=True)]
    i16: TypeAlias = Annotated[Row, RowOf(dtypes.i16, constant=True)]
    u16: TypeAlias = Annotated[Row, RowOf(dtypes.u16, constant=True)]
    i32: TypeAlias = Annotated[Row, RowOf(dtypes.i32, constant=True)]
    u32: TypeAlias = Annotated[Row, RowOf(dtypes.u32, constant=True)]
    i64: TypeAlias = Annotated[Row, RowOf(dtypes.i64, constant=True)]
    f16: TypeAlias = Annotated[Row, RowOf(dtypes.f16, constant=True)]
    bf16: TypeAlias = Annotated[Row, RowOf(dtypes.bf16, constant=True)]
    f32: TypeAlias = Annotated[Row, RowOf(dtypes.f32, constant=True)]
    f64: TypeAlias = Annotated[Row, RowOf(dtypes.f64, constant=True)]


class Out:
    """A row that the kernel writes, or reads and writes: `y: Out.f32`."""

    i8: TypeAlias = Annotated[Row, RowOf(dtypes.i8, constant=False)]
    u8: TypeAlias = Annotated[Row, RowOf(dtypes.u8, constant=False)]
    i16: TypeAlias = Annotated[Row, RowOf(dtypes.i16, constant=False)]
    u16: TypeAlias = Annotated[Row, RowOf(dtypes.u16, constant=False)]
    i32: TypeAlias = Annotated[Row, RowOf(dtypes.i32, constant=False)]
    u32: TypeAlias = Annotated[Row, RowOf(dtypes.u32, constant=False)]
    i64: TypeAlias = Annotated[Row, RowOf(dtypes.i64, constant=False)]
    f16: TypeAlias = Annotated[Row, RowOf(dtypes.f16, constant=False)]
    bf16: TypeAlias = Annotated[Row, RowOf(dtypes.bf16, constant=False)]
    f32: TypeAlias = Annotated[Row, RowOf(dtypes.f32, constant=False)]
    f64: TypeAlias = Annotated[Row, RowOf(dtypes.f64, constant=False)]


size: TypeAlias = Annotated[V, dtypes.i64]
"""The type of a run-time length, count or position."""

real: TypeAlias = Annotated[V, dtypes.f32]
"""The type of a run-time number."""

__all__ = [
    "BY_NAME", "LANES", "Acc", "In", "Out", "Row", "RowOf", "Scope", "Span", "Tracer", "V",
    "absolute", "acc", "concat", "convert", "emit", "full", "i1", "i32", "index", "lanes", "loop",
    "match_lanes", "maximum", "minimum", "native", "ptr", "real", "select", "size", "splat", "sqrt",
    "table", "tracer", "tracing", "value", "when", "where_traced",
]  # fmt: skip
