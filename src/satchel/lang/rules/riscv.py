"""RISC-V with the vector extension (V 1.0), at a known register length."""

from __future__ import annotations

from typing import Any

from satchel.base.dtypes import i16, i32, i64
from satchel.lang.ops import dot4, dot4_signed, muladd
from satchel.lang.trace import V, convert, native


@muladd.on("v")
def vfmadd(a: V, b: V, c: V) -> V:
    return native("llvm.fma[]", c.type, a, b, c)


@dot4_signed.on("v")
@dot4.on("v")
def vwmul(s: V, a: V, b: V, **_: Any) -> V:
    """A product of two bytes fits a word; the halves of a wider lane are added, twice, without a
    shuffle.
    """
    pairs = (convert(a, i16) * convert(b, i16)).bits(i32)
    pairs = (pairs >> 16) + ((pairs << 16) >> 16)
    fours = pairs.bits(i64)
    return s + convert((fours >> 32) + ((fours << 32) >> 32), i32)
