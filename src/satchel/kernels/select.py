"""What is picked: the wanted ones of all rows, and the greatest of a row's logits.

A row of logits is long, and what a sampler looks for in it are few: so each strip of neighbours
gets one maximum, and only strips whose maximum is great enough are ever looked into.
"""

from __future__ import annotations

from functools import reduce

from satchel.base.dtypes import f32, i32
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast
from satchel.lang.trace import (
    LANES,
    Acc,
    In,
    Out,
    Row,
    V,
    acc,
    index,
    lanes,
    loop,
    maximum,
    minimum,
    select,
    size,
)

RUN = 128
"""Strips of a tile: few enough that all workers share one row."""


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


def greater(a: V, b: V) -> V:
    """The greater of two numbers, or the NaN that one of them is."""
    return select(a.equals(a), maximum(a, b), a)  # maximum alone keeps a NaN on its right


def greatest(v: V) -> V:
    """The greatest lane, or a NaN where one is."""
    while v.lanes > 1:
        v = greater(v[: v.lanes // 2], v[v.lanes // 2 :])
    return v


@kernel
def strip_maxima(
    lo: size,
    hi: size,
    maxima: Out.f32,
    x: In.f32,
    n: size,
    x_stride: size,
    n_strips: size,
    *,
    strip: int,
):
    """Tile t: the maxima of RUN strips in a row of x, n wide; a row's tiles come one after another.

    maxima[row, s] is the greatest of x[row, strip * s : strip * (s + 1)], NaN where one is.
    """
    per_row = (n_strips + (RUN - 1)) // RUN
    for t in loop(lo, hi):
        row, first = t // per_row, t % per_row * RUN
        logits, out = x.at(row * x_stride), maxima.at(row * n_strips)
        whole = minimum(first + RUN, n // strip)
        for s in loop(first, whole):
            parts = [logits.load(s * strip + i, LANES) for i in range(0, strip, LANES)]
            out[s] = greatest(reduce(greater, parts))
        for s in loop(
            maximum(first, whole), minimum(first + RUN, n_strips)
        ):  # cut by the row's end
            top = acc(f32, 1, -float("inf"))
            for i in loop(s * strip, n):
                top.value = greater(top.value, logits[i])
            out[s] = top.value


@kernel
def argmax(
    lo: size,
    hi: size,
    ids: Out.i32,
    x: In.f32,
    maxima: In.f32,
    n: size,
    x_stride: size,
    n_strips: size,
    *,
    strip: int,
):
    """Tile t: ids[t] is where the greatest of x[t], n wide, first stands; -1 where one is NaN.

    `maxima` are those of `strip_maxima`.
    """
    for t in loop(lo, hi):
        logits, tops = x.at(t * x_stride), maxima.at(t * n_strips)
        top = acc(f32, 1, -float("inf"))
        for s in loop(n_strips):
            top.value = greater(top.value, tops[s])
        start = first_equal(tops, index(0), n_strips, top.value) * strip
        ids[t] = cast(first_equal(logits, start, minimum(start + strip, n), top.value), i32)


def first_equal(row: Row, begin: V, end: V, x: V) -> V:
    """Where x first stands in row[begin : end]; -1 where it does not."""
    found = Acc(index(-1))
    for i in loop(begin, end):
        here = (row[i].equals(x)) & (found.value < 0)
        found.value = select(here, i, found.value)
    return found.value
