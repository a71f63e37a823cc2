"""WebAssembly with 128-bit SIMD. Relaxed SIMD stays off: its dot product takes seven bits, and
LLVM uses it for eight.
"""

from __future__ import annotations

from typing import Any

from satchel.base.dtypes import i16
from satchel.lang.ops import dot4, dot4_signed
from satchel.lang.trace import V, convert, emit, native


@dot4_signed.on("simd128", bits=128)
@dot4.on("simd128", bits=128)
def dot_i16x8(s: V, a: V, b: V, **_: Any) -> V:
    halves = [
        native("llvm.wasm.dot", s.type, convert(a[h : h + 8], i16), convert(b[h : h + 8], i16))
        for h in (0, 8)
    ]
    even, odd = (emit("shuffle", *halves, lanes=tuple(range(k, 8, 2))) for k in (0, 1))
    return s + even + odd
