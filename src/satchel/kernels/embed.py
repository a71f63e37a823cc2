"""Rows of the embedding table, decoded from the file's own blocks."""

from __future__ import annotations

from satchel.base.dtypes import f32
from satchel.formats import by_name
from satchel.formats.packed import PackedFloats, packed
from satchel.kernels.blocks import RUN, read_block
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast
from satchel.lang.trace import In, Out, index, lanes, loop, real, size, splat


@kernel
def embed(
    lo: size,
    hi: size,
    y: Out.f32,
    table: In.u8,
    tokens: In.i32,
    n: size,
    y_stride: size,
    by: real,
    *,
    format: str,
):
    """Tile t: y[t] = by * row tokens[t] of the table, n wide."""
    layout, block = packed(format), by_name(format)
    for t in loop(lo, hi):
        row = table.past(index(tokens[t]) * (n // block.elements * block.bytes))
        out = y.at(t * y_stride)
        if isinstance(layout, PackedFloats):
            for i in lanes(n):
                out[i] = cast(row.past(0, layout.dtype)[i], f32) * by
            continue
        for b in loop(n // block.elements):
            for r, run in enumerate(read_block(block, row.past(b * block.bytes))):
                out.store(run.weights() * splat(by), b * block.elements + RUN * r)
