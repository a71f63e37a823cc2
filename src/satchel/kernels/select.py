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
    absolute,
    acc,
    full,
    index,
    lanes,
    loop,
    maximum,
    minimum,
    select,
    size,
    table,
    when,
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


def greatest_lane(v: V) -> V:
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
            out[s] = greatest_lane(reduce(greater, parts))
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


@kernel
def ranked(
    lo: size,
    hi: size,
    ids: Out.i32,
    greatest: Out.f32,
    places: Out.i32,
    values: Out.f32,
    x: In.f32,
    maxima: In.f32,
    n: size,
    x_stride: size,
    n_strips: size,
    *,
    strip: int,
    k: int,
    room: int,
):
    """Tile t: greatest[t] are the k greatest of x[t], n wide, and ids[t] where they stand; of
    equals the first comes first. ids[t, 0] is -1 where that was not found out: the greatest is no
    finite number, or there are fewer than k strips, or too many entries near the k-th.

    The k-th greatest of the strips' maxima is a floor that k entries reach, and few more. These are
    gathered, and each is put where it belongs by counting those before it. `places` and `values`
    are room for them: [tiles, room] and LANES more.
    """
    for t in loop(lo, hi):
        row, tops = x.at(t * x_stride), maxima.at(t * n_strips)
        out, numbers = ids.at(t * k), greatest.at(t * k)
        top = acc(f32, 1, -float("inf"))
        for s in loop(n_strips):
            top.value = greater(top.value, tops[s])
        least, enough = floor_of(tops, n_strips, k)
        place, near = places.at(t * (room + LANES)), values.at(t * (room + LANES))
        count = Acc(index(0))
        sound = enough & (absolute(top.value) < float("inf"))  # a NaN is not
        for s in loop(0, select(sound, n_strips, index(0))):
            for _ in when(least <= tops[s]):
                for i in loop(s * strip, minimum(s * strip + strip, n)):
                    at = minimum(count.value, index(room - 1))
                    near[at] = row[i]
                    place[at] = cast(i, i32)
                    count.value = count.value + select(least <= row[i], index(1), index(0))
        near.store(full(f32, -float("inf")), minimum(count.value, index(room)))
        out[0] = full(i32, -1, 1)
        for j in loop(0, select(count.value < room, count.value, index(0))):
            before = before_of(near, j, count.value)
            for _ in when(before < k):
                out[before] = place[j]
                numbers[before] = near[j]


def floor_of(tops: Row, n: V, k: int) -> tuple[V, V]:
    """The k-th greatest of n numbers, and whether there are so many: bit by bit, on integers in the
    order of the numbers.
    """
    low, high = acc(i32, 1, -(2**31)), acc(i32, 1, 2**31 - 1)
    for _ in loop(32):
        middle = (low.value & high.value) + ((low.value ^ high.value) >> 1)
        middle = middle + ((low.value ^ high.value) & 1)  # the upper one of two
        reached = count_reaching(tops, n, middle) >= k
        low.value = select(reached, middle, low.value)
        high.value = select(reached, high.value, middle - 1)
    return ordered(low.value).bits(f32), count_reaching(tops, n, low.value) >= k


def count_reaching(tops: Row, n: V, least: V) -> V:
    """How many of n numbers are `least` or more, as integers in their order."""
    whole = n - n % LANES
    many, one = acc(i32), full(i32, 1)
    for i in loop(0, whole, LANES):
        reaches = least <= ordered(tops.load(i, LANES).bits(i32))
        many.value = many.value + select(reaches, one, 0)
    count = Acc(many.value.sum())
    for i in loop(whole, n):
        reaches = least <= ordered(tops[i].bits(i32))
        count.value = count.value + select(reaches, one[0], 0)
    return count.value


def ordered(bits: V) -> V:
    """The bits of a float32 as an integer in the order of the numbers; its own inverse."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


def before_of(near: Row, j: V, count: V) -> V:
    """How many of the numbers stand before the j-th when the greatest is first."""
    own, many, one = near[j], acc(i32), full(i32, 1)
    for i in loop(0, count, LANES):
        others = near.load(i, LANES)
        at = table(i32, range(LANES)) + cast(i, i32)
        first = (own < others) | (own.equals(others) & (at < cast(j, i32)))
        many.value = many.value + select(first, one, 0)
    return index(many.value.sum())
