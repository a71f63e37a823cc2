"""Attention over KV pages: the softmax runs along page by page, in one order whatever the batch,
the chunk or the threads.

A row is one query head of one token. Rows that share a kv head read a page together. Per page
and row: scores, dims ascending; the page's greatest score joins the running greatest m; what was
summed so far shrinks by alpha = 2^(m_old - m); then the page's 64 slots are added in order. A
page that a row may not see changes none of its bits.

SEGMENT pages on, summing starts anew, and the segments' sums are merged in order. So a long past
can be cut at segments and shared among workers (`attend_part`, `merge_parts`), to the same bits as
if one had walked it all (`attend`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from satchel.base.dtypes import f32, i32
from satchel.kernels.activation import tanh
from satchel.kernels.cache_types import F16
from satchel.kernels.groups import MAX_SPLIT, SEGMENT, n_segments
from satchel.kernels.matmul import token_runs
from satchel.kernels.pages import COLUMN, PAGE, VECTORS, Head, Layout, head_of, page_address
from satchel.kernels.rope import LOG2E
from satchel.kernels.rotate import rotated
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
from satchel.machine.tiles import Tiles

LOWEST = -3.0e38

# f32 of a row's scratch: 64 weights of the page's slots; of the segment 16 sums, m, alpha; of all
# segments so far 16 sums and m; then the segment's values
SUMS, GREATEST, SHRINK, ALL_SUMS, ALL_GREATEST, VALUES = 64, 80, 81, 96, 112, 128


def scores(q: list[Row], page: Row, heads: Heads) -> list[list[V]]:
    """For each row, its products with the page's 64 keys: 4 vectors of 16 slots."""
    found: list[list[V]] = [[] for _ in q]
    for first in range(0, VECTORS, heads.across):
        part = range(first, first + heads.across)
        for row, new in zip(found, scores_of(q, page, heads, part), strict=True):
            row += new
    return found


def scores_of(q: list[Row], page: Row, heads: Heads, part: range) -> list[list[V]]:
    """The scores of some of the page's vectors."""
    keys, head_dim = heads.head.keys, heads.head_dim
    group = keys.group(head_dim)
    if group is None:
        return products(q, page, keys, part, 0, head_dim)
    sums = [[acc(f32) for _ in part] for _ in q]
    for g in loop(head_dim // group):
        found = products(q, page, keys, part, g * group, group)
        scales = keys.scales(page, head_dim, g, 0)
        for i, v in enumerate(part):
            scale = cast(scales.load(16 * v, 16), f32)
            for row_sums, row_found in zip(sums, found, strict=True):
                row_sums[i].value = muladd(row_found[i], scale, row_sums[i].value)
    return [[s.value for s in row_sums] for row_sums in sums]


def products(
    q: list[Row], page: Row, keys: Layout, part: range, first: Any, dims: int
) -> list[list[V]]:
    """Scores over some of the dims, without scales."""
    sums = [[acc(f32) for _ in part] for _ in q]
    step = math.gcd(dims, 4)
    for i in loop(0, dims, step):
        d = i + first
        for u, found in enumerate(keys.keys(page, d, step)):
            for row, row_sums in zip(q, sums, strict=True):
                x = splat(row.load(d + u))
                for v, total in zip(part, row_sums, strict=True):
                    total.value = muladd(found[v], x, total.value)
    return [[s.value for s in row_sums] for row_sums in sums]


def weigh(
    state: Row,
    found: list[V],
    first_slot: V,
    position: V,
    heads: Heads,
    values: Row,
) -> None:
    """The softmax step of one row on a page; first_slot: the position of the page's first slot.
    The weights are kept times the scales of the values, where they have any.
    """
    found, seen = seen_scores(heads, found, position - first_slot)
    before = state.load(GREATEST)
    greatest = maximum(maximum(found[0], found[1]), maximum(found[2], found[3])).top()
    greatest = maximum(before, greatest)
    shrink = exp2(before - greatest)
    sums = state.load(SUMS, 16)
    for v, (s, x) in enumerate(zip(seen, found, strict=True)):
        weight = select(s, exp2(x - splat(greatest)), 0.0)
        for at, scales in heads.scaled(values):
            by = weight if scales is None else weight * cast(scales.load(16 * v, 16), f32)
            state.store(by if scales is None else select(s, by, 0.0), at + 16 * v)
        sums = muladd(sums, splat(shrink), weight) if v == 0 else sums + weight
    state.store(sums, SUMS)
    state.store(greatest, GREATEST)
    state.store(shrink, SHRINK)


def seen_scores(heads: Heads, found: list[V], last: V) -> tuple[list[V], list[V]]:
    """A page's scores as they count, and whether each does; last: the query's own slot."""
    window, softcap = heads.window, heads.softcap
    if softcap is not None:
        found = [tanh(s * (1 / LOG2E / softcap)) * (softcap * LOG2E) for s in found]
    last, slots = cast(last, i32), [table(i32, range(16 * v, 16 * v + 16)) for v in range(VECTORS)]
    seen = [slot <= splat(last) for slot in slots]
    if window is not None:
        seen = [
            both & (splat(last) - slot < window) for both, slot in zip(seen, slots, strict=True)
        ]
    return [select(s, x, -math.inf) for s, x in zip(seen, found, strict=True)], seen


def gather(y: list[Row], states: list[Row], values: Row, heads: Heads, n_slots: V) -> None:
    """Shrink what the rows have and add the values of the page's first n_slots, slot after slot,
    some dims of a column at a time. The slots after them are no one's yet: a NaN that a former
    sequence left there would survive a weight of 0.
    """
    lanes = heads.head.values.lanes(heads.head_dim)
    for column in range(0, heads.head_dim, COLUMN):
        width = min(COLUMN, heads.head_dim - column)
        n_vectors = width // math.gcd(lanes, width)
        for first in range(0, n_vectors, heads.across):
            part = range(first, min(first + heads.across, n_vectors))
            gather_part(y, states, values, heads, n_slots, column, width // n_vectors, part)


def gather_part(
    y: list[Row], states: list[Row], values: Row, heads: Heads, n_slots: V, column: int, n: int,
    part: range,
) -> None:  # fmt: skip
    """Those vectors of n lanes of the column that are in `part`."""
    places = [column + i * n for i in part]
    weights = [heads.weights_of(at) for at in places]
    shrink = [splat(s.load(SHRINK), n) for s in states]
    sums = [[acc(f32, n) for _ in part] for _ in y]
    for row, row_sums, by in zip(y, sums, shrink, strict=True):
        for at, total in zip(places, row_sums, strict=True):
            total.value = row.load(at, n) * by
    for t in loop(n_slots):
        found = heads.head.values.values(values, heads.head_dim, column, t)
        for state, row_sums in zip(states, sums, strict=True):
            by = {at: splat(state.load(t + at), n) for at in dict.fromkeys(weights)}
            for at, i, total in zip(weights, part, row_sums, strict=True):
                total.value = muladd(found[i], by[at], total.value)
    for row, row_sums in zip(y, sums, strict=True):
        for at, total in zip(places, row_sums, strict=True):
            row.store(total, at)


@dataclass(frozen=True)
class Heads:
    """The constants of a layer's attention. A tile's rows are taken `widths[0]` at a time, by
    `across` vectors of slots, or of dims; narrower for those that are left.
    """

    n_kv: int
    per_kv: int
    head_dim: int
    window: int | None
    softcap: float | None
    group_tokens: int
    widths: tuple[int, ...]
    types: tuple[str, str] = (F16, F16)
    across: int = VECTORS

    @property
    def head(self) -> Head:
        """How keys and values are kept."""
        return head_of(self.types, self.head_dim)

    @property
    def lanes(self) -> int:
        """Neighbours of a head's dims that are handled at once."""
        return math.gcd(self.head_dim, 16)

    @property
    def row_floats(self) -> int:
        more = max(0, self.head.values.n_scales(self.head_dim) - 1)
        return VALUES + -(-self.head_dim // 16) * 16 + more * PAGE

    def weights_of(self, dim: int) -> int:
        """Where in a row's scratch the weights for a dim's values begin."""
        group = dim // (self.head.values.group(self.head_dim) or self.head_dim)
        return VALUES + -(-self.head_dim // 16) * 16 + (group - 1) * PAGE if group else 0

    def scaled(self, values: Row) -> list[tuple[int, Row | None]]:
        """The places of all weights, and the scales that they are multiplied by."""
        layout, dims = self.head.values, self.head_dim
        group = layout.group(dims)
        if group is None:
            return [(0, None)]
        return [
            (self.weights_of(g * group), layout.scales(values, dims, g, 0))
            for g in range(dims // group)
        ]

    @property
    def tile_floats(self) -> int:
        """Scratch of a tile."""
        return self.group_tokens * self.per_kv * self.row_floats


@dataclass(frozen=True)
class Group:
    """A tile's rows: the heads of kv head h, of n_tokens tokens of one sequence from `first` on."""

    heads: Heads
    h: V
    first: V
    n_tokens: V
    sequence: V

    @property
    def n_rows(self) -> V:
        return self.n_tokens * self.heads.per_kv

    def place(self, row: V) -> tuple[V, V]:
        """A row's token, and its head's first element in a token's heads."""
        per_kv = self.heads.per_kv
        head = (self.h * per_kv + row % per_kv) * self.heads.head_dim
        return self.first + row // per_kv, head


@dataclass(frozen=True)
class Past:
    """Where a kernel finds queries, keys and values."""

    q: Row
    kv: Row
    positions: Row
    tables: Row
    max_pages: V


def read_group(heads: Heads, groups: Row, g: V, h: V) -> Group:
    entry = groups.at(g * 4)
    return Group(heads, h, *(index(entry[i]) for i in range(3)))


def add_segment(group: Group, past: Past, own: Row, segment: V, n_heads: V) -> None:
    """Sum a segment's pages up in scratch, from nothing, for n_heads kv heads from the group's on.
    They take turns at each page: so memory is read on and on, which is twice as fast as in pieces.
    """
    heads, n = group.heads, group.heads.lanes
    for i in loop(n_heads):
        for row in loop(group.n_rows):
            state = own.at(i * heads.tile_floats + row * heads.row_floats)
            state.store(full(f32, 0.0), SUMS)
            state.store(full(f32, LOWEST, 1), GREATEST)
            for d in range(0, heads.head_dim, n):
                state.store(full(f32, 0.0, n), VALUES + d)
    begin = index(past.positions[group.first])
    end = index(past.positions[group.first + group.n_tokens - 1])
    oldest = index(0) if heads.window is None else maximum(begin - (heads.window - 1), 0)
    first, last = maximum(oldest // PAGE, segment * SEGMENT), segment * SEGMENT + SEGMENT
    page_bytes = heads.n_kv * heads.head.bytes
    for j in loop(first, minimum(end // PAGE + 1, last)):
        position = j * PAGE
        page = page_address(
            past.kv, past.tables, group.sequence, position, past.max_pages, page_bytes
        )
        n_slots = minimum(end + 1 - position, PAGE)
        for i in loop(n_heads):
            one = replace(group, h=group.h + i)
            state, here = own.at(i * heads.tile_floats), page.past(one.h * heads.head.bytes)
            add_page(one, past, state, here, position, n_slots)


def add_page(group: Group, past: Past, own: Row, page: Row, position: V, n_slots: V) -> None:
    """A page for all rows of a group, several rows at a time."""
    heads, values = group.heads, group.heads.head.values_of(page)
    for row, width in token_runs(0, group.n_rows, heads.widths):
        at = [group.place(row + i) for i in range(width)]
        states = [own.at((row + i) * heads.row_floats) for i in range(width)]
        q_stride = heads.n_kv * heads.per_kv * heads.head_dim
        queries = [past.q.at(t * q_stride + head) for t, head in at]
        found = scores(queries, page, heads)
        for (t, _), state, s in zip(at, states, found, strict=True):
            weigh(state, s, position, index(past.positions[t]), heads, values)
        gather([s.at(VALUES) for s in states], states, values, heads, n_slots)


def begin_rows(group: Group, y: Row, y_stride: V, own: Row) -> None:
    """Nothing is summed yet."""
    heads, n = group.heads, group.heads.lanes
    for row in loop(group.n_rows):
        t, head = group.place(row)
        state = own.at(row * heads.row_floats)
        state.store(full(f32, 0.0), ALL_SUMS)
        state.store(full(f32, LOWEST, 1), ALL_GREATEST)
        for d in range(0, heads.head_dim, n):
            y.store(full(f32, 0.0, n), t * y_stride + head + d)


def merge_segment(group: Group, y: Row, y_stride: V, own: Row, part: Row) -> None:
    """Add a segment's sums, in the scratch `part`, to those of the segments before it."""
    heads, n = group.heads, group.heads.lanes
    for row in loop(group.n_rows):
        t, head = group.place(row)
        total, state = own.at(row * heads.row_floats), part.at(row * heads.row_floats)
        before, new = total.load(ALL_GREATEST), state.load(GREATEST)
        greatest = maximum(before, new)
        keep, take = exp2(before - greatest), exp2(new - greatest)
        old = total.load(ALL_SUMS, 16) * splat(keep)
        total.store(muladd(state.load(SUMS, 16), splat(take), old), ALL_SUMS)
        total.store(greatest, ALL_GREATEST)
        for d in range(0, heads.head_dim, n):
            out = y.at(t * y_stride + head + d)
            kept = out.load(0, n) * splat(keep, n)
            out.store(muladd(state.load(VALUES + d, n), splat(take, n), kept))


def finish_rows(group: Group, y: Row, y_stride: V, own: Row) -> None:
    """Divide by the sum of weights; adding 0.0 makes a zero of either sign the same. What was
    rotated is turned back.
    """
    heads, n = group.heads, group.heads.lanes
    for row in loop(group.n_rows):
        t, head = group.place(row)
        total = own.at(row * heads.row_floats).load(ALL_SUMS, 16).sum()
        if heads.head.values.rotated:
            out = y.at(t * y_stride + head)
            for i, x in enumerate(rotated([out.load(d, n) for d in range(0, heads.head_dim, n)])):
                out.store(x, i * n)
        for d in range(0, heads.head_dim, n):
            out = y.at(t * y_stride + head + d)
            out.store(out.load(0, n) / splat(total, n) + 0.0)


def segments(group: Group, positions: Row) -> tuple[V, V]:
    """The first segment that a group sees, and the one after its last."""
    begin = index(positions[group.first])
    end = index(positions[group.first + group.n_tokens - 1])
    window = group.heads.window
    oldest = index(0) if window is None else maximum(begin - (window - 1), 0)
    return oldest // (PAGE * SEGMENT), end // (PAGE * SEGMENT) + 1


@kernel
def attend(
    lo: size, hi: size, y: Out.f32, scratch: Out.f32, q: In.f32, kv: In.u8, positions: In.i32,
    tables: In.i32, groups: In.i32, max_pages: size, y_stride: size, **constants: Any,
) -> None:  # fmt: skip
    """Tile g * n_kv + h: the tokens of group g (first, count, sequence, -), their query heads of kv
    head h, over all that they see.

    q: [tokens, n_kv * per_kv, head_dim], turned and scaled for base 2; y: [tokens, ...] of the
    same heads. Constants: those of Heads.
    """
    heads, past = Heads(**constants), Past(q, kv, positions, tables, max_pages)
    for tile in loop(lo, hi):
        group = read_group(heads, groups, tile // heads.n_kv, tile % heads.n_kv)
        own = scratch.at(tile * heads.tile_floats)
        begin_rows(group, y, y_stride, own)
        for segment in loop(*segments(group, positions)):
            add_segment(group, past, own, segment, index(1))
            merge_segment(group, y, y_stride, own, own)
        finish_rows(group, y, y_stride, own)


@kernel
def attend_part(
    lo: size, hi: size, scratch: Out.f32, q: In.f32, kv: In.u8, positions: In.i32,
    tables: In.i32, groups: In.i32, n_groups: size, together: size, max_pages: size,
    **constants: Any,
) -> None:  # fmt: skip
    """Of the tiles (s * n_groups + g) * n_kv + h, so many heads `together` are one: as `attend`,
    but segment s alone; its sums stay in the tile's scratch.
    """
    heads, past = Heads(**constants), Past(q, kv, positions, tables, max_pages)
    for tile in loop(lo, hi):
        first = tile * together
        both, h = first // heads.n_kv, first % heads.n_kv
        group = read_group(heads, groups, both % n_groups, h)
        own = scratch.at(first * heads.tile_floats)
        add_segment(group, past, own, both // n_groups, together)


@kernel
def merge_parts(
    lo: size, hi: size, y: Out.f32, scratch: Out.f32, positions: In.i32, groups: In.i32,
    n_groups: size, y_stride: size, **constants: Any,
) -> None:  # fmt: skip
    """Tile g * n_kv + h: the end of what `attend_part` began."""
    heads = Heads(**constants)
    for tile in loop(lo, hi):
        group = read_group(heads, groups, tile // heads.n_kv, tile % heads.n_kv)
        own = scratch.at(tile * heads.tile_floats)
        begin_rows(group, y, y_stride, own)
        for segment in loop(*segments(group, positions)):
            part = scratch.at((segment * (n_groups * heads.n_kv) + tile) * heads.tile_floats)
            merge_segment(group, y, y_stride, own, part)
        finish_rows(group, y, y_stride, own)


def group_shape(per_kv: int, bits: int, registers: int, tiles: Tiles) -> dict[str, Any]:
    """How many tokens a tile takes, and how many rows and vectors at once: by default as many sums
    as the registers hold, and rather more rows, as what was converted for one serves them all.
    """
    most = tiles.queries or (6 if bits * registers >= 512 * 32 else 2)
    room = 3 * registers // 4 // (most * max(1, 512 // bits))  # vectors of 16 sums
    across = 4 if room >= 4 else 2 if room >= 2 else 1
    widths = tuple(sorted({w for w in (most, per_kv, 2, 1) if w <= most}, reverse=True))
    return {
        "group_tokens": max(1, 24 // per_kv),
        "widths": widths,
        **({} if across == VECTORS else {"across": across}),
    }


def scratch_bytes(heads: Heads, max_batch: int, context: int) -> int:
    """Scratch of all tiles: whole ones, or as many parts as a context has segments."""
    whole, parts = max_batch * heads.n_kv, MAX_SPLIT * n_segments(context)
    return max(whole, parts) * heads.tile_floats * 4
