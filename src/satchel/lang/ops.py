"""Ops above the primitives. The body of an op is its meaning; rules (lang/rules/) put better
instructions in its place where a
target has them, and must agree with the meaning on every input that the op's docstring allows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from satchel.base.dtypes import DType, bf16, f16, f32, i8, i16, i32, u8, u16, u32
from satchel.base.errors import KernelError
from satchel.lang.ir import Attrs, Inst, Type
from satchel.lang.trace import (
    Tracer,
    V,
    absolute,
    convert,
    full,
    maximum,
    minimum,
    select,
    tracer,
    tracing,
)


@dataclass(frozen=True)
class Rule:
    """With these features, this body; for registers of `bits` if given; `requires` looks at the
    op's attrs.
    """

    features: frozenset[str]
    body: Callable[..., V]
    bits: int | None
    requires: Callable[..., bool]

    @property
    def name(self) -> str:
        words = (
            sorted(self.features) + [self.body.__name__] + ([str(self.bits)] if self.bits else [])
        )
        return "-".join(w for w in words if w != "_")

    def takes(self, inst: Inst) -> bool:
        """Whether it can stand for this instruction."""
        return inst.result is not None and self.fits(inst.result.type, dict(inst.attrs))

    def fits(self, result: Type, attrs: dict[str, Any]) -> bool:
        return (self.bits is None or result.bits % self.bits == 0) and self.requires(**attrs)


def _always(**_: Any) -> bool:
    return True


class Op:
    """An op: call it in a kernel. `ulps`: how far a rule may stray from the meaning (0: equal
    bits).
    """

    def __init__(self, body: Callable[..., V], ulps: int) -> None:
        self.name, self.body, self.ulps, self.__doc__ = body.__name__, body, ulps, body.__doc__
        self.rules: list[Rule] = []
        self._types: dict[tuple[Any, ...], Type] = {}

    def on(
        self,
        *features: str,
        bits: int | tuple[int, ...] | None = None,
        requires: Callable[..., bool] | None = None,
    ) -> Callable[[Callable[..., V]], Callable[..., V]]:
        """Add a rule; those added first are preferred."""

        def add(body: Callable[..., V]) -> Callable[..., V]:
            widths = bits if isinstance(bits, tuple) else (bits,)
            for width in widths:
                self.rules.append(Rule(frozenset(features), body, width, requires or _always))
            return body

        return add

    def __call__(self, *args: V, **attrs: Any) -> V:
        return tracer().append(self.name, args, tuple(attrs.items()), self.type)

    def type(self, _: str, types: tuple[Type, ...], attrs: Attrs) -> Type:
        """The type that the meaning makes of arguments of these types. Raises KernelError."""
        if (types, attrs) not in self._types:
            with tracing(Tracer()):
                self._types[types, attrs] = self.body(*map(V, types), **dict(attrs)).type
        return self._types[types, attrs]


OPS: dict[str, Op] = {}


def op(body: Callable[..., V] | None = None, *, ulps: int = 0) -> Any:
    """Make an op of its meaning."""

    def make(body: Callable[..., V]) -> Op:
        OPS[body.__name__] = made = Op(body, ulps)
        return made

    return make(body) if body else make


# ---- arithmetic ----------------------------------------------------------------------------------


@op(ulps=1)
def muladd(a: V, b: V, c: V) -> V:
    """a * b + c, rounded once where the target has such an instruction, else twice; always the
    same on one target.
    """
    return a * b + c


@op
def dot4(s: V, a: V, b: V, *, top: int = 255) -> V:  # noqa: ARG001  (rules look at it)
    """s[i] + a[4i]*b[4i] + ... + a[4i+3]*b[4i+3], exact: i32 from u8 (none above `top`) and i8."""
    if (a.dtype, b.dtype) != (u8, i8):
        raise KernelError(f"takes u8 and i8, not {a.dtype} and {b.dtype}")
    return _add_products(s, a, b)


@op
def dot_quads(s: V, *pairs: V, top: int = 255) -> V:
    """s and the products of several pairs, given as a, b, a, b, ...: each as dot4 takes it, so u8
    (none above `top`) and any i8; exact in i32, however many there are.
    """
    for a, b in zip(pairs[::2], pairs[1::2], strict=True):
        s = dot4(s, a, b, top=top)
    return s


@op
def dot4_signed(s: V, a: V, b: V) -> V:
    """s[i] + a[4i]*b[4i] + ... + a[4i+3]*b[4i+3], exact: i32 from i8 and i8, none of b -128."""
    if (a.dtype, b.dtype) != (i8, i8):
        raise KernelError(f"takes i8 and i8, not {a.dtype} and {b.dtype}")
    return _add_products(s, a, b)


def _add_products(s: V, a: V, b: V) -> V:
    """s and the products of the bytes in each of its lanes."""
    for k in range(4):
        picked = list(range(k, a.lanes, 4))
        s = s + convert(a.shuffle(picked), i32) * convert(b.shuffle(picked), i32)
    return s


@op(ulps=2)
def exp2(x: V) -> V:
    """2 to the x, for f32. Below -126 it is 2^-126 or less, at -infinity too; above 127.5 it is
    not defined. A NaN stays one.
    """
    x = maximum(full(f32, -126.0, x.lanes), x)  # in this order a NaN stays one
    shifted = x + 12582912.0  # 1.5 * 2^23: rounds to a whole number and leaves it in the low bits
    whole = shifted - 12582912.0
    part = x - whole
    p = full(f32, EXP2[-1], x.lanes)
    for c in reversed(EXP2[:-1]):
        p = muladd(p, part, full(f32, c, x.lanes))
    return p * ((shifted.bits(i32) << 23) + 0x3F800000).bits(f32)


EXP2 = (
    1.0,
    0.69314718056,
    0.24022650696,
    0.0555041087,
    0.00961812911,
    0.00133335581,
    0.00015403530,
)
"""Taylor's coefficients of 2^x: ln(2)^n / n!; for |x| <= 1/2 the rest is below 1.3e-7."""


def exp(x: V) -> V:
    """e to the x, for f32 x <= 88."""
    return exp2(x * 1.44269504089)


def round_i32(x: V) -> V:
    """The nearest whole number, ties to even, as i32; |x| below 2^22."""
    return (x + 12582912.0).bits(i32) - 0x4B400000


# ---- short floats --------------------------------------------------------------------------------


@op
def widen(x: V) -> V:
    """f16 or bf16 as f32, exact; a NaN stays one."""
    if x.dtype is bf16:
        return (convert(x.bits(u16), u32) << 16).bits(f32)
    bits = convert(x.bits(u16), u32)
    sign, rest = (bits & 0x8000) << 16, (bits & 0x7FFF) << 13
    finite = (rest.bits(f32) * 2.0**112).bits(
        u32
    )  # moves the exponent's bias from 15 to 127, subnormals too
    return (select((bits & 0x7FFF) < 0x7C00, finite, rest | 0x7F800000) | sign).bits(f32)


@op
def narrow(x: V, *, to: DType) -> V:
    """f32 as f16 or bf16, to the nearest, ties to even; a NaN stays one."""
    bits = x.bits(u32)
    size = bits & 0x7FFFFFFF
    if to is bf16:
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        short = select(size <= 0x7F800000, rounded, (bits >> 16) | 0x40)
        return convert(short, u16).bits(bf16)
    normal = (
        size + 0xC8000FFF + ((size >> 13) & 1)
    ) >> 13  # the other bias, and half of the last place
    tiny = (size.bits(f32) + 0.5).bits(
        u32
    ) - 0x3F000000  # adding 0.5 shifts a subnormal's bits into place
    special = select(
        size <= 0x7F800000, full(u32, 0x7C00, x.lanes), ((size >> 13) & 0x3FF) | 0x7E00
    )
    short = select(size < 0x38800000, tiny, select(size < 0x47800000, normal, special))
    return convert(short | ((bits >> 16) & 0x8000), u16).bits(f16)


def cast(x: V, to: DType) -> V:
    """The number x as another type, short floats included. Floats round to even, integers wrap."""
    if x.dtype is to:
        return x
    if x.dtype in (f16, bf16):
        return cast(widen(x), to)
    return narrow(cast(x, f32), to=to) if to in (f16, bf16) else convert(x, to)


def clamp(x: V, low: float, high: float) -> V:
    return minimum(maximum(x, low), high)


def splat_bytes(four: V, lanes: int, to: DType = i8) -> V:
    """A dword (i32) in every lane, taken as four bytes each."""
    return tracer().emit("splat", four, lanes=lanes).bits(to)


__all__ = [
    "OPS", "Op", "Rule", "absolute", "cast", "clamp", "dot4", "dot4_signed", "dot_quads",
    "exp", "exp2", "i16", "muladd", "narrow", "op", "round_i32", "splat_bytes", "widen",
]  # fmt: skip
