"""x86: SSE4.1, AVX2 + FMA + F16C, AVX-VNNI, AVX-512 VNNI."""

from __future__ import annotations

from typing import Any

from satchel.base.dtypes import DType, f16, f32, i8, i16, u8
from satchel.lang.ir import Type
from satchel.lang.ops import dot4, dot4_signed, dot_quads, muladd, narrow, widen
from satchel.lang.trace import V, absolute, convert, emit, full, native


def is_small(top: int = 255) -> bool:
    return top <= 127


@muladd.on("fma")
def fused(a: V, b: V, c: V) -> V:
    return native("llvm.fma[]", c.type, a, b, c)


def vpdpbusd(s: V, a: V, b: V, **_: Any) -> V:
    """Unsigned by signed bytes, four products added to a dword without saturation."""
    return native(f"llvm.x86.avx512.vpdpbusd.{s.type.bits}", s.type, s, a, b)


dot4.on("avx512vnni", "avx512vl", bits=(512, 256, 128))(vpdpbusd)
dot4.on("avxvnni", bits=(256, 128))(vpdpbusd)

_MADD_BYTES = {256: "llvm.x86.avx2.pmadd.ub.sw", 128: "llvm.x86.ssse3.pmadd.ub.sw.128"}
_MADD_WORDS = {256: "llvm.x86.avx2.pmadd.wd", 128: "llvm.x86.sse2.pmadd.wd"}


def pair_words(s: V, a: V, b: V) -> V:
    """Pairs of bytes to words, which saturate above 2 * 127 * 128."""
    return native(_MADD_BYTES[s.type.bits], Type(i16, 2 * s.lanes), a, b)


def add_words(s: V, words: V) -> V:
    """Pairs of words to dwords."""
    return s + native(_MADD_WORDS[s.type.bits], s.type, words, full(i16, 1, words.lanes))


def pmaddubsw(s: V, a: V, b: V, **_: Any) -> V:
    return add_words(s, pair_words(s, a, b))


dot4.on("avx2", bits=256, requires=is_small)(pmaddubsw)
dot4.on("ssse3", bits=128, requires=is_small)(pmaddubsw)


_WORD = 32767
"""The greatest that a word of products may come to; the least is one less."""


def leaves_room(top: int = 255) -> bool:
    return 2 * (2 * 128 * top) <= _WORD


def paddw(s: V, *pairs: V, top: int) -> V:
    """Codes of few bits leave room in a word for more than one quad's pairs.

    No word overflows: the sum of a pair's two products is at most 2 * top * 128 either way (a byte
    is at least -128), and no more of them are added than 32767 has room for.
    """
    room = _WORD // (2 * 128 * top)
    words = [pair_words(s, a, b) for a, b in zip(pairs[::2], pairs[1::2], strict=True)]
    for i in range(0, len(words), room):
        s = add_words(s, sum(words[i + 1 : i + room], start=words[i]))
    return s


dot_quads.on("avx512vnni", "avx512vl")(dot_quads.body)  # vpdpbusd makes no words
dot_quads.on("avxvnni")(dot_quads.body)
dot_quads.on("avx2", bits=256, requires=leaves_room)(paddw)
dot_quads.on("ssse3", bits=128, requires=leaves_room)(paddw)


_SIGN_BYTES = {256: "llvm.x86.avx2.psign.b", 128: "llvm.x86.ssse3.psign.b.128"}


def psignb(s: V, a: V, b: V) -> V:
    """|a| by b with the sign of a (0 where a is 0): the products of a and b, of which one factor is
    unsigned.

    Exact: |a| is at most 128, and as an unsigned byte -128 has that size. Of b, which is no -128,
    the other sign is a byte again, of at most 127. So a pair's sum is at most 2 * 128 * 127 = 32512
    either way, and a word, which ends at 32767, holds it.
    """
    signed = native(_SIGN_BYTES[s.type.bits], Type(i8, 4 * s.lanes), b, a)
    return pmaddubsw(s, absolute(a).bits(u8), signed)


dot4_signed.on("avx2", bits=256)(psignb)
dot4_signed.on("ssse3", bits=128)(psignb)


def pmaddwd(s: V, a: V, b: V, **_: Any) -> V:
    """All bytes as words first: any byte will do."""
    n = 2 * s.lanes
    halves = [
        native(
            _MADD_WORDS[s.type.bits], s.type, convert(a[h : h + n], i16), convert(b[h : h + n], i16)
        )
        for h in (0, n)
    ]
    even, odd = (emit("shuffle", *halves, lanes=tuple(range(k, n, 2))) for k in (0, 1))
    return s + even + odd


dot4.on("avx2", bits=256)(pmaddwd)
dot4.on("sse3", bits=128)(pmaddwd)


def is_half(to: DType) -> bool:
    return to is f16


@widen.on("f16c")
def vcvtph2ps(x: V) -> V:
    return emit("convert", x, to=f32) if x.dtype is f16 else widen.body(x)


@narrow.on("f16c", requires=is_half)
def vcvtps2ph(x: V, **_: Any) -> V:
    return emit("convert", x, to=f16)
