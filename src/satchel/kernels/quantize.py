"""Activations as 8-bit codes with a scale for each 32 of them, in the order and with the sums that
the matrix kernels read.

With two digits, each block is followed by a second one that holds what it left over, 254 times as
fine: for the head, whose error goes straight into the logits and whose cost is reading its
weights, once for both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from satchel.base.dtypes import f32, i8, i32
from satchel.kernels.norm import rms_scale
from satchel.lang.kernel import kernel
from satchel.lang.ops import absolute, cast, round_i32
from satchel.lang.trace import (
    In,
    Out,
    Row,
    V,
    concat,
    index,
    loop,
    maximum,
    real,
    select,
    size,
    splat,
)

CODES = 32
BLOCK_BYTES = 64
"""A block: 32 codes (i8); d (f32); minus their sums (i32): first 16, last 16, all; d times the sums
(f32); 4 bytes unused.
"""

SCALE, MINUS_SUMS, SCALED_SUMS = 32, 36, 48  # byte offsets in a block
FIRST, LAST, ALL = 0, 1, 2  # which sum


@dataclass(frozen=True)
class Passes:
    """How a product takes n rows of codes: as many at a time as the widest pass takes, then the
    rest by narrower ones. The first blocks of a pass's rows lie beside each other (each with its
    second digit), then their second ones, and so on: it reads them on and on.
    """

    n: V
    widths: tuple[int, ...]

    def of(self, row: V) -> tuple[V, V]:
        """The pass that takes a row: its first row, and its width."""
        first, width = row, index(1)
        ends = pass_ends(index(0), self.n, self.widths)
        begins = [index(0), *ends]
        for w, begin, end in reversed(list(zip(self.widths, begins, ends, strict=False))):
            first = select(row < end, row - (row - begin) % w, first)
            width = select(row < end, index(w), width)
        return first, width


def pass_ends(begin: Any, until: V, widths: tuple[int, ...]) -> list[V]:
    """Where the passes of each width end that take rows begin .. until; the last width is 1."""
    ends: list[V] = []
    for w in widths:
        ends.append(until - (until - begin) % w if w > 1 else until)
        begin = ends[-1]
    return ends


def quantize_block(out: Row, x: tuple[V, V], finer: Row | None = None) -> None:
    """Write a block: code = round(x / d), d = max |x| / 127; all zero where x is. `x` is 2 x 16
    lanes. A block with a NaN or an infinity in it has a NaN for d, so that its products are NaN.
    """
    top = maximum(absolute(x[0]), absolute(x[1])).top()
    broken = ((x[0] - x[0]) + (x[1] - x[1])).sum()  # 0.0, or NaN: a maximum may lose a NaN
    d = top * (1.0 / 127.0) + broken
    inverse = splat(select(d > 1e-35, 1.0 / d, 0.0))
    scaled = [v * inverse for v in x]
    codes = [round_i32(v) for v in scaled]
    write_block(out, codes, d)
    if finer is not None:
        rest = [(v - cast(c, f32)) * 254.0 for v, c in zip(scaled, codes, strict=True)]
        write_block(finer, [round_i32(v) for v in rest], d * (1.0 / 254.0))


def write_block(out: Row, codes: list[V], d: V) -> None:
    """Codes, their scale, and their sums."""
    out.past(0, i8).store(cast(concat(*codes), i8))
    out.past(SCALE, f32).store(d)
    first, last = (c.sum() for c in codes)
    for i, total in enumerate((first, last, first + last)):
        out.past(MINUS_SUMS, i32).store(-total, i)
        out.past(SCALED_SUMS, f32).store(d * cast(total, f32), i)


def quantize_row(
    out: Row, row: V, n: V, digits: int, passes: Passes, read: Callable[[V], V]
) -> None:
    """Blocks of a whole row, n (a multiple of 32) wide; read(i) gives 16 neighbours from i on."""
    first, width = passes.of(row)
    together = digits * BLOCK_BYTES
    own = out.past(first * (n // CODES * together) + (row - first) * together)
    for b in loop(n // CODES):
        at, i = b * (width * together), b * CODES
        finer = own.past(at + BLOCK_BYTES) if digits == 2 else None
        quantize_block(own.past(at), (read(i), read(i + 16)), finer)


@kernel
def quantize(
    lo: size,
    hi: size,
    out: Out.u8,
    x: In.f32,
    n: size,
    x_stride: size,
    n_rows: size,
    *,
    widths: tuple[int, ...],
    digits: int = 1,
):
    """Tile t: row t of x, n wide (rows x_stride elements apart), as blocks, for a product that
    takes the n_rows rows by passes of these widths.
    """
    passes = Passes(n_rows, widths)
    for t in loop(lo, hi):
        row = x.at(t * x_stride)
        quantize_row(out, t, n, digits, passes, lambda i, row=row: row.load(i, 16))


@kernel
def norm_quantize(
    lo: size,
    hi: size,
    out: Out.u8,
    x: In.f32,
    w: In.f32,
    n: size,
    x_stride: size,
    n_rows: size,
    eps: real,
    *,
    widths: tuple[int, ...],
    digits: int = 1,
):
    """Tile t: row t of x over its root mean square, times w, as blocks (see quantize)."""
    passes = Passes(n_rows, widths)
    for t in loop(lo, hi):
        row = x.at(t * x_stride)
        scale = splat(rms_scale(row, n, eps))

        def normed(i: V, row: Row = row, scale: V = scale) -> V:
            return row.load(i, 16) * scale * w.load(i, 16)

        quantize_row(out, t, n, digits, passes, normed)
