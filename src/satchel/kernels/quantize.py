"""Activations as 8-bit codes with a scale for each 32 of them, in the order and with the sums that the matrix kernels read."""

from __future__ import annotations

from typing import Any

from satchel.base.dtypes import f32, i8, i32, u8
from satchel.kernels.norm import rms_scale
from satchel.lang.kernel import kernel
from satchel.lang.ops import absolute, cast, round_i32
from satchel.lang.trace import In, Out, Row, V, concat, loop, maximum, select, size, splat

CODES = 32
BLOCK_BYTES = 64
"""A block: 32 codes (i8); d (f32); their sums (i32): first 16, last 16, all; d times those sums (f32); 4 bytes unused."""

SCALE, SUMS, SCALED_SUMS = 32, 36, 48  # byte offsets in a block
FIRST, LAST, ALL = 0, 1, 2  # which sum


def quantize_block(out: Row, x: tuple[V, V]) -> None:
    """Write a block: code = round(x / d), d = max |x| / 127; all zero where x is. `x` is 2 x 16 lanes."""
    top = maximum(absolute(x[0]), absolute(x[1])).top()
    d = top * (1.0 / 127.0)
    inverse = select(d > 1e-35, 1.0 / d, 0.0)
    codes = [round_i32(v * splat(inverse)) for v in x]
    out.past(0, i8).store(cast(concat(*codes), i8))
    out.past(SCALE, f32).store(d)
    first, last = (c.sum() for c in codes)
    for i, total in enumerate((first, last, first + last)):
        out.past(SUMS, i32).store(total, i)
        out.past(SCALED_SUMS, f32).store(d * cast(total, f32), i)


def quantize_row(out: Row, x: Row, n: Any) -> None:
    """Blocks of a whole row of f32; n is a multiple of 32."""
    for b in loop(n // CODES):
        quantize_block(out.past(b * BLOCK_BYTES), (x.load(b * CODES, 16), x.load(b * CODES + 16, 16)))


@kernel
def quantize(lo: size, hi: size, out: Out[u8], x: In[f32], n: size, x_stride: size):
    """Tile t: row t of x, n wide (rows x_stride elements apart), as blocks."""
    for t in loop(lo, hi):
        quantize_row(out.past(t * (n // CODES * BLOCK_BYTES)), x.at(t * x_stride), n)


@kernel
def norm_quantize(lo: size, hi: size, out: Out[u8], x: In[f32], w: In[f32], n: size, x_stride: size, eps: f32):
    """Tile t: row t of x over its root mean square, times w, as blocks."""
    for t in loop(lo, hi):
        row, blocks = x.at(t * x_stride), out.past(t * (n // CODES * BLOCK_BYTES))
        scale = splat(rms_scale(row, n, eps))
        for b in loop(n // CODES):
            i = b * CODES
            quantize_block(
                blocks.past(b * BLOCK_BYTES),
                (row.load(i, 16) * scale * w.load(i, 16), row.load(i + 16, 16) * scale * w.load(i + 16, 16)),
            )
