"""Activations, as functions for the ends of products, and as kernels of their own."""

from __future__ import annotations

from collections.abc import Callable

from satchel.base.dtypes import f32
from satchel.lang.kernel import kernel
from satchel.lang.ops import exp
from satchel.lang.trace import In, Out, V, full, lanes, loop, maximum, minimum, real, size


def silu(x: V) -> V:
    """x * sigmoid(x)."""
    x = maximum(full(f32, -88.0, x.lanes), x)  # farther out it is as good as 0
    return x / (1.0 + exp(-x))


def tanh(x: V) -> V:
    """Hyperbolic tangent, for any x."""
    x = minimum(full(f32, 43.0, x.lanes), x)  # in this order a NaN stays one
    return 1.0 - 2.0 / (1.0 + exp(x * 2.0))


def gelu(x: V) -> V:
    """The tanh form: x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))."""
    return x * (
        1.0 - 1.0 / (1.0 + exp(minimum(x * (0.7978845608 + 0.0356774081 * x * x), 43.0) * 2.0))
    )


GATES: dict[str, Callable[[V], V]] = {"silu": silu, "gelu": gelu}


@kernel
def gated(
    lo: size,
    hi: size,
    y: Out.f32,
    gate: In.f32,
    up: In.f32,
    n: size,
    gate_stride: size,
    up_stride: size,
    y_stride: size,
    *,
    act: str,
):
    """Tile t: y[t] = act(gate[t]) * up[t]."""
    for t in loop(lo, hi):
        g, u, out = gate.at(t * gate_stride), up.at(t * up_stride), y.at(t * y_stride)
        for i in lanes(n):
            out[i] = GATES[act](g[i]) * u[i]


@kernel
def softcap(
    lo: size, hi: size, y: Out.f32, x: In.f32, n: size, stride: size, y_stride: size, cap: real
):
    """Tile t: y[t] = cap * tanh(x[t] / cap)."""
    for t in loop(lo, hi):
        row, out = x.at(t * stride), y.at(t * y_stride)
        for i in lanes(n):
            out[i] = tanh(row[i] / cap) * cap
