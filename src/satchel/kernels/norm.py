"""Root-mean-square norms."""

from __future__ import annotations

from typing import Any

from satchel.base.dtypes import f32
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast, muladd
from satchel.lang.trace import In, Out, Row, V, acc, index, lanes, loop, real, size, sqrt


def rms_scale(x: Row, n: Any, eps: V) -> V:
    """1 / sqrt(mean(x * x) + eps) of a row of n elements."""
    squares = acc(f32)
    for i in lanes(n):
        squares.value = muladd(x[i], x[i], squares.value)
    return 1.0 / sqrt(squares.value.sum() / cast(index(n), f32) + eps)


@kernel
def rms_norm(
    lo: size,
    hi: size,
    y: Out.f32,
    x: In.f32,
    w: In.f32,
    residual: In.f32,
    n: size,
    x_stride: size,
    y_stride: size,
    residual_stride: size,
    eps: real,
    *,
    add: bool = False,
):
    """Tile t: y[t] = x[t] / rms(x[t]) * w, plus residual[t] if `add`."""
    for t in loop(lo, hi):
        row, out, rest = x.at(t * x_stride), y.at(t * y_stride), residual.at(t * residual_stride)
        scale = rms_scale(row, n, eps)
        for i in lanes(n):
            normed = row[i] * scale * w[i]
            out[i] = rest[i] + normed if add else normed
