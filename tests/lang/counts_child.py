"""python counts_child.py: the assembly of the kernels below on every target, as JSON, in a process
of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from satchel.base.dtypes import f16, f32, i8, i32
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast, dot4, dot4_signed, dot_quads, muladd, splat_bytes
from satchel.lang.target import TARGETS
from satchel.lang.trace import In, Out, acc, full, loop, size


@kernel
def dot(lo: size, hi: size, y: Out.i32, w: In.u8, x: In.i8, n: size, *, top: int | None):
    """16 rows times one vector: 64 bytes of w and 4 of x at a time; top None: signed ones."""
    for tile in loop(lo, hi):
        total = acc(i32)
        rows = w.past(tile * (n * 16))
        for k in loop(n // 4):
            codes = splat_bytes(x.past(k * 4, i32).load(), 16)
            line = rows.load(k * 64, 64)
            if top is None:
                total.value = dot4_signed(total.value, line.bits(i8), codes)
            else:
                total.value = dot4(total.value, line, codes, top=top)
        y.store(total.value, tile * 16)


@kernel
def quads(lo: size, hi: size, y: Out.i32, w: In.u8, x: In.i8, *, top: int):
    """16 rows times one vector: eight quads of each."""
    for tile in loop(lo, hi):
        rows = w.past(tile * 512)
        pairs = [
            v
            for k in range(8)
            for v in (rows.load(64 * k, 64), splat_bytes(x.past(4 * k, i32).load(), 16))
        ]
        y.store(dot_quads(full(i32, 0), *pairs, top=top), tile * 16)


@kernel
def halfs(lo: size, hi: size, y: Out.f16, x: In.f16, by: In.f32):
    """y = x * by + x, halfs in memory."""
    for i in loop(lo, hi):
        wide = cast(x.load(i * 16, 16), f32)
        y.store(cast(muladd(wide, by.load(0, 16), wide), f16), i * 16)


KERNELS: dict[str, tuple[Any, dict[str, int | None]]] = {
    "dot": (dot, {"top": 255}),
    "dot7": (dot, {"top": 127}),
    "dot_signed": (dot, {"top": None}),
    "quads4": (quads, {"top": 15}),
    "quads5": (quads, {"top": 31}),
    "halfs": (halfs, {}),
}

if __name__ == "__main__":
    json.dump(
        {
            t: {k: f.build(target, **c).assembly for k, (f, c) in KERNELS.items()}
            for t, target in TARGETS.items()
        },
        sys.stdout,
    )
