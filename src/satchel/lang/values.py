"""Values under trace: operators on symbols write instructions down, into the body that is open.

Each is checked as it is written, so an error names the kernel's own line.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from satchel.base.dtypes import DType
from satchel.base.errors import KernelError
from satchel.lang.ir import Attrs, Inst, Stmt, Type, Value
from satchel.lang.primitives import EFFECTS, constant_bits, result_type

LANES = 16
"""Lanes of a vector in our kernels, on every target: LLVM cuts it into the registers there are, so
all add in one order.
"""


@dataclass(eq=False)
class Scope:
    """A body under construction, the accs that it carries (acc -> param, init), and what it has
    computed already; `where` its loop stands in the kernel's source."""

    where: str = ""
    is_open: bool = True
    body: list[Stmt] = field(default_factory=list[Stmt])
    carried: dict[Acc, tuple[V, V]] = field(default_factory=lambda: {})
    seen: dict[tuple[Any, ...], V] = field(default_factory=lambda: {})


class Tracer:
    """Where instructions go. One is current at a time in each thread (`tracing`)."""

    def __init__(self) -> None:
        self.consts: dict[tuple[Any, ...], Inst] = {}
        self.scopes = [Scope()]

    def emit(self, op: str, *args: Value, **attrs: Any) -> V:
        """The result of a primitive; the one there is already, if it was computed before."""
        return self.append(op, args, tuple(attrs.items()), result_type)

    def append(self, op: str, args: tuple[Value, ...], attrs: Attrs, rule: TypeOf) -> V:
        """The result of an op whose type `rule` knows. Raises KernelError, naming the line."""
        key = (op, args, attrs)
        for scope in self.scopes:
            if key in scope.seen:
                return scope.seen[key]
        try:
            kind = rule(op, tuple(a.type for a in args), attrs)
        except KernelError as e:
            where = f"{where_traced()}: "
            raise KernelError(f"{where}{op} {str(e).removeprefix(where)}") from None
        if any(isinstance(a, V) and a.scope is not None and not a.scope.is_open for a in args):
            raise KernelError(
                f"{where_traced()}: {op} uses a value of a loop after it: make it an acc"
            )
        here = self.scopes[-1]
        result = V(kind, here)
        here.body.append(Inst(op, args, attrs, None if op in EFFECTS else result))
        if op not in ("load", *EFFECTS):
            here.seen[key] = result
        return result

    def const(self, kind: Type, value: Any) -> V:
        """A constant; all stand before the body. Raises KernelError on a number that kind can't
        hold.
        """
        key: tuple[Any, ...] = (kind, type(value).__name__, repr(value))
        if key not in self.consts:
            try:
                constant_bits(kind, value)
            except KernelError as e:
                raise KernelError(f"{where_traced()}: {e}") from None
            self.consts[key] = Inst("const", (), (("type", kind), ("value", value)), V(kind))
        result = self.consts[key].result
        assert isinstance(result, V)
        return result

    def body(self) -> tuple[Stmt, ...]:
        """What was traced: the constants first. Raises KernelError on a loop that was not ended."""
        if len(self.scopes) > 1:
            raise KernelError(f"{self.scopes[-1].where}: break and return do not leave a loop")
        return (*self.consts.values(), *self.scopes[0].body)


TypeOf = Callable[[str, tuple[Type, ...], Attrs], Type]

_CURRENT: ContextVar[Tracer | None] = ContextVar("tracer", default=None)


@contextmanager
def tracing(tracer: Tracer) -> Generator[Tracer, None, None]:
    """Make a tracer this thread's current one."""
    before = _CURRENT.set(tracer)
    try:
        yield tracer
    finally:
        _CURRENT.reset(before)


def tracer() -> Tracer:
    current = _CURRENT.get()
    if current is None:
        raise KernelError(f"{where_traced()}: kernel code runs only while a kernel is traced")
    return current


_ROOM = __file__.rpartition("values")[0]


def where_traced() -> str:
    """`file:line` of the kernel's code that is being run."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_ROOM):
        frame = frame.f_back
    return f"{frame.f_code.co_filename.replace(chr(92), '/').rpartition('/')[2]}:{frame.f_lineno}"


class V(Value):
    """A value with operators. A Python number beside one takes its type; a scalar beside a vector
    is splat.
    """

    __slots__ = ("scope",)

    def __init__(self, kind: Type, scope: Scope | None = None) -> None:
        """`scope`: the body that makes it, where one does."""
        self.type, self.scope = kind, scope

    @property
    def lanes(self) -> int:
        return self.type.lanes

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def _with(self, op: str, other: Any, swap: bool = False) -> V:
        a, b = match_lanes(self, value(other, self.type))
        return tracer().emit(op, b, a) if swap else tracer().emit(op, a, b)

    def __add__(self, o: Any) -> V:
        return self if is_number(o, 0) else self._with("add", o)

    def __radd__(self, o: Any) -> V:
        return self + o

    def __sub__(self, o: Any) -> V:
        return self if is_number(o, 0) else self._with("sub", o)

    def __rsub__(self, o: Any) -> V:
        return self._with("sub", o, swap=True)

    def __mul__(self, o: Any) -> V:
        return self if is_number(o, 1) else self._with("mul", o)

    def __rmul__(self, o: Any) -> V:
        return self * o

    def __truediv__(self, o: Any) -> V:
        return self._with("div", o)

    def __rtruediv__(self, o: Any) -> V:
        return self._with("div", o, swap=True)

    def __floordiv__(self, o: Any) -> V:
        return self if is_number(o, 1) else self._with("div", o)

    def __mod__(self, o: Any) -> V:
        return self._with("rem", o)

    def __and__(self, o: Any) -> V:
        return self._with("and", o)

    def __or__(self, o: Any) -> V:
        return self._with("or", o)

    def __xor__(self, o: Any) -> V:
        return self._with("xor", o)

    def __lshift__(self, o: Any) -> V:
        return self if is_number(o, 0) else self._with("shl", o)

    def __rshift__(self, o: Any) -> V:
        return self if is_number(o, 0) else self._with("shr", o)

    def __neg__(self) -> V:
        return self.__mul__(-1.0) if self.dtype.is_float else 0 - self

    def __lt__(self, o: Any) -> V:
        return self._with("lt", o)

    def __le__(self, o: Any) -> V:
        return self._with("le", o)

    def __gt__(self, o: Any) -> V:
        return self._with("lt", o, swap=True)

    def __ge__(self, o: Any) -> V:
        return self._with("le", o, swap=True)

    __hash__ = object.__hash__

    def __eq__(self, o: object) -> bool:
        raise KernelError(f"{where_traced()}: values are compared by x.equals(y)")

    def __bool__(self) -> bool:
        raise KernelError(
            f"{where_traced()}: what a value is shows at run time: use select or when"
        )

    def equals(self, o: Any) -> V:
        return self._with("eq", o)

    def __getitem__(self, lanes: slice | int) -> V:
        """Some of the lanes: v[8:16], v[0]."""
        picked = range(self.lanes)[lanes]
        return self.shuffle([picked] if isinstance(picked, int) else list(picked))

    def shuffle(self, lanes: list[int]) -> V:
        return (
            self
            if lanes == list(range(self.lanes))
            else tracer().emit("shuffle", self, lanes=tuple(lanes))
        )

    def bits(self, to: DType) -> V:
        """The same bits, cut into lanes of another type."""
        return self if to is self.dtype else tracer().emit("bitcast", self, to=to)

    def sum(self) -> V:
        """All lanes added: halves onto each other, in this one order on every target."""
        v = self
        while v.lanes > 1:
            v = v[: v.lanes // 2] + v[v.lanes // 2 :]
        return v

    def top(self) -> V:
        """The greatest lane."""
        v = self
        while v.lanes > 1:
            v = maximum(v[: v.lanes // 2], v[v.lanes // 2 :])
        return v


def is_number(o: Any, number: int) -> bool:
    return isinstance(o, int) and o == number


def value(x: Any, kind: Type) -> V:
    """x itself, or a constant of this type. A number that the type can't hold is an error."""
    if isinstance(x, Acc):
        x = x.value
    if isinstance(x, V):
        return x
    if kind.dtype.is_float and isinstance(x, int):
        x = float(x)
    return tracer().const(kind, x)


def match_lanes(a: V, b: V) -> tuple[V, V]:
    if a.lanes == b.lanes:
        return a, b
    if 1 not in (a.lanes, b.lanes):
        raise KernelError(f"{where_traced()}: mixes {a.type} with {b.type}: the lanes differ")
    return (splat(a, b.lanes), b) if a.lanes == 1 else (a, splat(b, a.lanes))


def splat(x: Any, lanes: int = LANES) -> V:
    """One scalar in all lanes."""
    x = x.value if isinstance(x, Acc) else x
    return x if x.lanes == lanes else tracer().emit("splat", x, lanes=lanes)


def full(dtype: DType, number: float, lanes: int = LANES) -> V:
    """A constant in all lanes."""
    return value(number, Type(dtype, lanes))


def table(dtype: DType, numbers: Iterable[float]) -> V:
    """A constant with a number a lane."""
    numbers = tuple(numbers)
    return tracer().const(Type(dtype, len(numbers)), numbers)


def concat(first: V, *rest: V) -> V:
    """Lanes side by side; two equal pieces at a time."""
    parts = [first, *rest]
    while len(parts) > 1:
        pairs = zip(parts[::2], parts[1::2], strict=True)
        parts = [emit("shuffle", a, b, lanes=tuple(range(2 * a.lanes))) for a, b in pairs]
    return parts[0]


def maximum(a: V, b: Any) -> V:
    return a._with("max", b)  # pyright: ignore[reportPrivateUsage]


def minimum(a: V, b: Any) -> V:
    return a._with("min", b)  # pyright: ignore[reportPrivateUsage]


def select(cond: V, a: V, b: Any) -> V:
    """a where cond holds, b elsewhere."""
    a, b = match_lanes(a, value(b, a.type))
    cond, a = match_lanes(cond, a)
    return tracer().emit("select", cond, *match_lanes(a, b))


def absolute(x: V) -> V:
    return tracer().emit("abs", x)


def sqrt(x: V) -> V:
    return tracer().emit("sqrt", x)


def emit(op: str, *args: Value, **attrs: Any) -> V:
    """Any op by name; for rules."""
    return tracer().emit(op, *args, **attrs)


def native(name: str, kind: Type, *args: Value) -> V:
    """An instruction of the target, by LLVM's name for it. `[]` stands for LLVM's suffix of the
    result's type.
    """
    return tracer().emit("native", *args, name=name, type=kind)


def convert(x: Any, to: DType, lanes: int = 1) -> V:
    """The number x as another type: integers wrap, floats round to even, a float to an integer is
    cut toward zero.
    """
    x = value(x, Type(to, lanes))
    return x if x.dtype is to else tracer().emit("convert", x, to=to)


class Acc:
    """A value that survives iterations: `a += x`, `a.value = x`."""

    def __init__(self, init: V) -> None:
        self._home, self._now = tracer().scopes[-1], init

    @property
    def value(self) -> V:
        """The value here and now. In a loop that began after the acc did, it becomes one that the
        loop carries.
        """
        scopes = tracer().scopes
        if self._home not in scopes:
            raise KernelError(f"{where_traced()}: an acc made in a loop ends with it")
        for scope in scopes[scopes.index(self._home) + 1 :]:
            if self not in scope.carried:
                param = V(self._now.type, scope)
                scope.carried[self] = (param, self._now)
                self._now = param
        return self._now

    @value.setter
    def value(self, x: V) -> None:
        if x.type != self.value.type:
            raise KernelError(
                f"{where_traced()}: an acc of {self._now.type} can't take {x.type}: convert it"
            )
        self._now = x

    def leave(self, x: V) -> None:
        """After a loop: its result is the value."""
        self._now = x

    def __iadd__(self, x: Any) -> Acc:
        self.value = self.value + x
        return self
