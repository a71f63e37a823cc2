"""ARM: NEON, dot products, int8 matrix multiplication (its mixed-sign dot product)."""

from __future__ import annotations

from typing import Any

from satchel.base.dtypes import DType, f16, f32, i8, i16
from satchel.lang.ops import dot4, dot4_signed, dot_quads, muladd, narrow, widen
from satchel.lang.trace import V, convert, emit, full, native


@muladd.on("neon")
def fmla(a: V, b: V, c: V) -> V:
    return native("llvm.fma[]", c.type, a, b, c)


@dot4.on("i8mm", bits=128)
def usdot(s: V, a: V, b: V, **_: Any) -> V:
    return native("llvm.aarch64.neon.usdot.v4i32.v16i8", s.type, s, a, b)


@dot4_signed.on("dotprod", bits=128)
def sdot(s: V, a: V, b: V) -> V:
    return native("llvm.aarch64.neon.sdot.v4i32.v16i8", s.type, s, a, b)


@dot4.on("dotprod", bits=128)
def sdot_low(s: V, a: V, b: V, *, top: int = 255) -> V:
    """Signed only: an unsigned byte above 127 is a - 128, and 128 times the sum of b makes up for
    it.
    """
    if top <= 127:
        return sdot(s, a.bits(i8), b)
    low = sdot(s, (a ^ 128).bits(i8), b)
    return low + (sdot(full(s.dtype, 0, s.lanes), full(i8, 1, b.lanes), b) << 7)


@dot4_signed.on("neon", bits=128)
@dot4.on("neon", bits=128)
def saddlp(s: V, a: V, b: V, **_: Any) -> V:
    """A product of two bytes fits a word; neighbours are added into dwords, and those again."""
    return add_words(s, convert(a, i16) * convert(b, i16))


def add_words(s: V, words: V) -> V:
    pairs = [
        native("llvm.aarch64.neon.saddlp.v4i32.v8i16", s.type, words[h : h + 8]) for h in (0, 8)
    ]
    return s + native("llvm.aarch64.neon.addp.v4i32", s.type, *pairs)


_WORD = 32767
"""The greatest that a word of products may come to; the least is one less."""


def leaves_room(top: int = 255) -> bool:
    return 2 * (128 * top) <= _WORD


def smlal(s: V, *pairs: V, top: int) -> V:
    """Codes of few bits leave room in a word for more than one product, none of which is above
    top * 128 either way: as many are added as 32767 has room for.
    """
    room = _WORD // (128 * top)
    words = [
        convert(a.bits(i8), i16) * convert(b, i16)
        for a, b in zip(pairs[::2], pairs[1::2], strict=True)
    ]
    for i in range(0, len(words), room):
        s = add_words(s, sum(words[i + 1 : i + room], start=words[i]))
    return s


dot_quads.on("dotprod")(dot_quads.body)  # usdot and sdot make no words
dot_quads.on("neon", bits=128, requires=leaves_room)(smlal)


@widen.on("neon")
def fcvtl(x: V) -> V:
    return emit("convert", x, to=f32) if x.dtype is f16 else widen.body(x)


def is_half(to: DType) -> bool:
    return to is f16


@narrow.on("neon", requires=is_half)
def fcvtn(x: V, **_: Any) -> V:
    return emit("convert", x, to=f16)
