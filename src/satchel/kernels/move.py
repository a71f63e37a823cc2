"""Slots of KV pages are moved to others, and their keys turned to the positions they have there.

A sequence that forgets some of its tokens closes the gaps that they leave: positions are places in
the cache, as in StreamingLLM (https://arxiv.org/abs/2309.17453). A turn by some positions less is a
turn back, by the same table of cosines and sines.
"""

from __future__ import annotations

import math

from satchel.base.dtypes import f32
from satchel.kernels.cache_types import F16
from satchel.kernels.pages import PAGE, Floats, finite, head_of
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast
from satchel.lang.trace import In, Out, Row, V, index, loop, real, size, when


@kernel
def move_slots(
    lo: size, hi: size, kv: Out.u8, targets: In.i32, sources: In.i32, shifts: In.i32,
    turns: In.f32, by: real,
    *, n_kv: int, head_dim: int, dims: int, pairs: str, types: tuple[str, str] = (F16, F16),
):  # fmt: skip
    """Tile i * n_kv + h: kv head h of page targets[i], whose slot s gets what slot sources[i, s]
    (counted over all pages) has, its keys turned back by shifts[i, s] positions; less than 0: none.

    turns: as in rope_store; by: one over its magnitude, for what is turned twice is stretched once.
    No page is both a target and a source.
    """
    kept = head_of(types, head_dim)
    assert isinstance(kept.keys, Floats)
    assert isinstance(kept.values, Floats)
    for tile in loop(lo, hi):
        i, h = tile // n_kv, tile % n_kv
        to = kv.past(index(targets[i]) * (n_kv * kept.bytes) + h * kept.bytes)
        for slot in loop(PAGE):
            source = index(sources[i * PAGE + slot])
            for _ in when(source >= 0):
                page = kv.past(source // PAGE * (n_kv * kept.bytes) + h * kept.bytes)
                turn = turns.at(index(shifts[i * PAGE + slot]) * dims)
                move_keys(kept.keys, to, slot, page, source % PAGE, turn, by, dims, pairs)
                for dim in loop(dims, head_dim):
                    move_key(kept.keys, to, slot, page, source % PAGE, dim)
                values = kept.values_of(to), slot, kept.values_of(page), source % PAGE
                move_values(kept.values, *values, head_dim)


def move_keys(
    layout: Floats, to: Row, slot: V, page: Row, source: V, turn: Row, by: V, dims: int, pairs: str
) -> None:
    """The turned keys of a token's head, pair by pair."""
    half = dims // 2
    for i in loop(half):
        first, second = (2 * i, 2 * i + 1) if pairs == "adjacent" else (i, i + half)
        cos, sin = turn.load(i) * by, turn.load(i + half) * by
        a, b = (
            cast(page.past(layout.key_offset(dim, source), layout.dtype).load(), f32)
            for dim in (first, second)
        )
        for dim, x in ((first, a * cos + b * sin), (second, b * cos - a * sin)):
            place = to.past(layout.key_offset(dim, slot), layout.dtype)
            place.store(cast(finite(x), layout.dtype))


def move_key(layout: Floats, to: Row, slot: V, page: Row, source: V, dim: V) -> None:
    """A key that is not turned."""
    x = page.past(layout.key_offset(dim, source), layout.dtype).load()
    to.past(layout.key_offset(dim, slot), layout.dtype).store(x)


def move_values(layout: Floats, to: Row, slot: V, page: Row, source: V, head_dim: int) -> None:
    """A token's values of a head."""
    n = math.gcd(head_dim, 16)
    for at in range(0, head_dim, n):
        x = page.past(layout.value_offset(at, source, head_dim), layout.dtype).load(0, n)
        to.past(layout.value_offset(at, slot, head_dim), layout.dtype).store(x)
