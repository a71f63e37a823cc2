"""How much is attended to each slot: the weights of all queries that have seen it, added up.

Attention itself knows a query's weights but up to their sum, until it has seen all pages. So the
scores are computed once more when that is known, for models that are asked to weigh their tokens.
"""

from __future__ import annotations

from typing import Any

from satchel.kernels.attention import (
    ALL_GREATEST,
    ALL_SUMS,
    Group,
    Heads,
    Past,
    read_group,
    scores,
    seen_scores,
)
from satchel.kernels.matmul import token_runs
from satchel.kernels.pages import PAGE, VECTORS, page_address
from satchel.lang.kernel import kernel
from satchel.lang.ops import exp2
from satchel.lang.trace import In, Out, Row, V, index, loop, minimum, select, size, splat


@kernel
def weigh_slots(
    lo: size, hi: size, mass: Out.f32, scratch: In.f32, q: In.f32, kv: In.u8, positions: In.i32,
    tables: In.i32, groups: In.i32, n_groups: size, max_pages: size,
    **constants: Any,
) -> None:  # fmt: skip
    """Tile h: adds to mass[page, h, slot], of all slots that a step's queries see, the weights that
    their heads of kv head h gave them, whose sums `attend` left in scratch.

    What the slots of the step's own tokens had before is forgotten. Queries are added in the order
    of their positions, however they are batched.
    """
    heads, past = Heads(**constants), Past(q, kv, positions, tables, max_pages)
    for h in loop(lo, hi):
        for i in loop(n_groups):
            group = read_group(heads, groups, i, h)
            for t in loop(group.n_tokens):
                position = index(positions[group.first + t])
                slots_of(mass, past, group, position).store(0.0, position % PAGE)
        for i in loop(n_groups):
            tile = (n_groups - 1 - i) * heads.n_kv + h  # groups that see least come last
            group = read_group(heads, groups, tile // heads.n_kv, tile % heads.n_kv)
            add_group(group, past, mass, scratch, tile)


def slots_of(mass: Row, past: Past, group: Group, position: V) -> Row:
    """The masses of the page that holds a position."""
    page = index(past.tables[group.sequence * past.max_pages + position // PAGE])
    return mass.at((page * group.heads.n_kv + group.h) * PAGE)


def add_group(group: Group, past: Past, mass: Row, scratch: Row, tile: V) -> None:
    """The weights that a group's rows gave."""
    heads = group.heads
    n_bytes, q_stride = heads.n_kv * heads.head.bytes, heads.n_kv * heads.per_kv * heads.head_dim
    end = index(past.positions[group.first + group.n_tokens - 1])
    for j in loop(end // PAGE + 1):
        position = j * PAGE
        own = slots_of(mass, past, group, position)
        page = page_address(past.kv, past.tables, group.sequence, position, past.max_pages, n_bytes)
        here = page.past(group.h * heads.head.bytes)
        for row, width in token_runs(0, group.n_rows, heads.widths):
            at = [group.place(row + i) for i in range(width)]
            queries = [past.q.at(t * q_stride + head) for t, head in at]
            found = scores(queries, here, heads)
            for i, ((t, _), s) in enumerate(zip(at, found, strict=True)):
                state = scratch.at(tile * heads.tile_floats + (row + i) * heads.row_floats)
                add_row(heads, own, state, s, index(past.positions[t]) - position)


def add_row(heads: Heads, own: Row, state: Row, found: list[V], last: V) -> None:
    """A query's weights on a page whose slots up to `last` it sees."""
    found, seen = seen_scores(heads, found, minimum(last, PAGE - 1))
    greatest, total = state.load(ALL_GREATEST), state.load(ALL_SUMS, 16).sum()
    for v in range(VECTORS):
        weight = exp2(found[v] - splat(greatest)) / splat(total)
        own.store(own.load(16 * v, 16) + select(seen[v], weight, 0.0), 16 * v)
