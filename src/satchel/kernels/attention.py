"""Attention over KV pages: the softmax runs along page by page, in one order whatever the batch,
the chunk or the threads.

A row is one query head of one token. Rows that share a kv head read a page together. Per page
and row: scores, dims ascending; the page's greatest score joins the running greatest m; what was
summed so far shrinks by alpha = 2^(m_old - m); then the page's 64 slots are added in order. A
page that a row may not see changes none of its bits.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from satchel.base.dtypes import f16, f32, i32
from satchel.kernels.activation import tanh
from satchel.kernels.matmul import token_runs
from satchel.kernels.pages import COLUMN, PAGE, column_offset, head_bytes, key_offset, page_address
from satchel.kernels.rope import LOG2E
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast, exp2, muladd
from satchel.lang.trace import (
    In,
    Out,
    Row,
    V,
    acc,
    full,
    index,
    loop,
    maximum,
    minimum,
    select,
    size,
    splat,
    table,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VECTORS = PAGE // 16
STATE = 128  # f32 of scratch a row: 64 weights of the page's slots, 16 sums, m, alpha, and room
SUMS, GREATEST, SHRINK = 64, 80, 81
LOWEST = -3.0e38


def scores(q: list[Row], page: Row, head_dim: int) -> list[list[V]]:
    """For each row, its products with the page's 64 keys: 4 vectors of 16 slots."""
    sums = [[acc(f32) for _ in range(VECTORS)] for _ in q]
    step = math.gcd(head_dim, 4)
    for d in loop(0, head_dim, step):
        for u in range(step):
            keys = [
                cast(page.past(d * (2 * PAGE) + key_offset(u, 16 * v), f16).load(0, 16), f32)
                for v in range(VECTORS)
            ]
            for row, row_sums in zip(q, sums, strict=True):
                x = splat(row.load(d + u))
                for key, total in zip(keys, row_sums, strict=True):
                    total.value = muladd(key, x, total.value)
    return [[s.value for s in row_sums] for row_sums in sums]


def weigh(
    state: Row,
    found: list[V],
    first_slot: V,
    position: V,
    window: int | None,
    softcap: float | None,
) -> None:
    """The softmax step of one row on a page; first_slot: the position of the page's first slot."""
    if softcap is not None:
        found = [tanh(s * (1 / LOG2E / softcap)) * (softcap * LOG2E) for s in found]
    last, slots = (
        cast(position - first_slot, i32),
        [table(i32, range(16 * v, 16 * v + 16)) for v in range(VECTORS)],
    )
    seen = [slot <= splat(last) for slot in slots]
    if window is not None:
        seen = [
            both & (splat(last) - slot < window) for both, slot in zip(seen, slots, strict=True)
        ]
    found = [select(s, x, -math.inf) for s, x in zip(seen, found, strict=True)]
    before = state.load(GREATEST)
    greatest = maximum(maximum(found[0], found[1]), maximum(found[2], found[3])).top()
    greatest = maximum(before, greatest)
    shrink = exp2(before - greatest)
    sums = state.load(SUMS, 16)
    for v, (s, x) in enumerate(zip(seen, found, strict=True)):
        weight = select(s, exp2(x - splat(greatest)), 0.0)
        state.store(weight, 16 * v)
        sums = muladd(sums, splat(shrink), weight) if v == 0 else sums + weight
    state.store(sums, SUMS)
    state.store(greatest, GREATEST)
    state.store(shrink, SHRINK)


def gather(y: list[Row], states: list[Row], page: Row, head_dim: int, n_slots: V) -> None:
    """Shrink what the rows have and add the values of the page's first n_slots, slot after slot, a
    column of dims at a time. The slots after them are no one's yet: a NaN that a former sequence
    left there would survive a weight of 0.
    """
    for column in range(0, head_dim, COLUMN):
        begin, width = column_offset(column, head_dim)
        n = math.gcd(width, 16)
        parts = range(0, width, n)
        shrink = [splat(s.load(SHRINK), n) for s in states]
        sums = [[acc(f32, n) for _ in parts] for _ in y]
        for row, row_sums, by in zip(y, sums, shrink, strict=True):
            for at, total in zip(parts, row_sums, strict=True):
                total.value = row.load(column + at, n) * by
        for t in loop(n_slots):
            values = [
                cast(page.past(t * (2 * width) + (begin + 2 * at), f16).load(0, n), f32)
                for at in parts
            ]
            for state, row_sums in zip(states, sums, strict=True):
                weight = splat(state.load(t), n)
                for value, total in zip(values, row_sums, strict=True):
                    total.value = muladd(value, weight, total.value)
        for row, row_sums in zip(y, sums, strict=True):
            for at, total in zip(parts, row_sums, strict=True):
                row.store(total, column + at)


@kernel
def attend(
    lo: size,
    hi: size,
    y: Out.f32,
    scratch: Out.f32,
    q: In.f32,
    kv: In.u8,
    positions: In.i32,
    tables: In.i32,
    groups: In.i32,
    max_pages: size,
    y_stride: size,
    *,
    n_kv: int,
    per_kv: int,
    head_dim: int,
    window: int | None,
    softcap: float | None,
    group_tokens: int,
    widths: tuple[int, ...],
):
    """Tile g * n_kv + h: the tokens of group g (first, count, sequence, -), their per_kv query
    heads of kv head h.

    q: [tokens, n_kv * per_kv, head_dim], turned and scaled for base 2; y: [tokens, ...] of the
    same heads.
    """
    rows_at_most = group_tokens * per_kv
    for tile in loop(lo, hi):
        group, h = groups.at(tile // n_kv * 4), tile % n_kv
        first, n_tokens, sequence = (index(group[i]) for i in range(3))
        begin, end = index(positions[first]), index(positions[first + n_tokens - 1])
        own = scratch.at(tile * (rows_at_most * STATE))

        def places(row: V, first: V = first, h: V = h) -> tuple[V, V]:
            """A row's token, and its head's first element in a token's heads."""
            return first + row // per_kv, (h * per_kv + row % per_kv) * head_dim

        for row in loop(n_tokens * per_kv):
            t, head = places(row)
            for at in range(0, head_dim, math.gcd(head_dim, 16)):
                y.store(full(f32, 0.0, math.gcd(head_dim, 16)), t * y_stride + head + at)
            own.at(row * STATE).store(full(f32, 0.0), SUMS)
            own.at(row * STATE).store(full(f32, LOWEST, 1), GREATEST)
        oldest = 0 if window is None else positive(begin - (window - 1))
        for j in loop(index(oldest) // PAGE, end // PAGE + 1):
            position = j * PAGE
            n_slots = minimum(end + 1 - position, PAGE)
            page = page_address(
                kv, tables, sequence, position, max_pages, n_kv * head_bytes(head_dim)
            )
            page = page.past(h * head_bytes(head_dim))
            for row, width in token_runs(0, n_tokens * per_kv, widths):
                at = [places(row + i) for i in range(width)]
                states = [own.at((row + i) * STATE) for i in range(width)]
                found = scores(
                    [q.at(t * (n_kv * per_kv * head_dim) + head) for t, head in at], page, head_dim
                )
                for (t, _), state, s in zip(at, states, found, strict=True):
                    weigh(state, s, position, index(positions[t]), window, softcap)
                out = [y.at(t * y_stride + head) for t, head in at]
                gather(out, states, page, head_dim, n_slots)
        for row in loop(n_tokens * per_kv):
            t, head = places(row)
            total = own.at(row * STATE).load(SUMS, 16).sum()
            n = math.gcd(head_dim, 16)
            for d in range(0, head_dim, n):
                out = y.at(t * y_stride + head + d)
                out.store(out.load(0, n) / splat(total, n) + 0.0)


def positive(x: V) -> V:
    return maximum(x, 0)


def group_shape(per_kv: int, bits: int, registers: int) -> dict[str, Any]:
    """How many tokens a tile takes, and how many rows at once: as many whole tokens' heads as the
    registers hold.
    """
    most = 6 if bits * registers >= 512 * 32 else 1
    whole = most // per_kv * per_kv or most
    widths = tuple(sorted({whole, min(per_kv, most), min(2, most), 1}, reverse=True))
    return {"group_tokens": max(1, 24 // per_kv), "widths": widths}


def scratch_bytes(n_groups: int, n_kv: int, per_kv: int, group_tokens: int) -> int:
    """Scratch of all tiles."""
    return n_groups * n_kv * group_tokens * per_kv * STATE * 4


def query_groups(
    sequences: NDArray[np.int32], positions: NDArray[np.int32], group_tokens: int
) -> NDArray[np.int32]:
    """Runs of at most group_tokens tokens, each of one sequence at positions one after another: [n,
    4] of (first token, count, sequence, 0), those that see most first.
    """
    import numpy as np

    n = len(sequences)
    new = np.ones(n, bool)
    new[1:] = (sequences[1:] != sequences[:-1]) | (positions[1:] != positions[:-1] + 1)
    starts: list[int] = np.flatnonzero(new).tolist()
    ends = [*starts[1:], n]
    groups = np.array(
        [
            (first, min(group_tokens, end - first), sequences[start], 0)
            for start, end in zip(starts, ends, strict=True)
            for first in range(start, end, group_tokens)
        ],
        np.int32,
    )
    return groups[np.argsort(-positions[groups[:, 0]], kind="stable")]
