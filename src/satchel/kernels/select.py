"""Rows: those that are wanted, picked out of all."""

from __future__ import annotations

from satchel.lang.kernel import kernel
from satchel.lang.trace import In, Out, index, lanes, loop, size


@kernel
def pick(
    lo: size,
    hi: size,
    y: Out.f32,
    x: In.f32,
    wanted: In.i32,
    n: size,
    x_stride: size,
    y_stride: size,
):
    """Tile t: y[t] = x[wanted[t]]."""
    for t in loop(lo, hi):
        row, out = x.at(index(wanted[t]) * x_stride), y.at(t * y_stride)
        for i in lanes(n):
            out[i] = row[i]
