"""Positions: q and k are turned, and k and v put into the KV pages."""

from __future__ import annotations

import math

from satchel.base.dtypes import f16, f32
from satchel.kernels.norm import rms_scale
from satchel.kernels.pages import PAGE, head_bytes, key_offset, page_address, value_offset
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast
from satchel.lang.trace import (
    In,
    Out,
    Row,
    V,
    emit,
    full,
    index,
    loop,
    maximum,
    minimum,
    real,
    size,
    splat,
)

LOG2E = 1.4426950408889634
F16_MAX = 65504.0


def turned(
    x: Row, turns: Row, head_dim: int, dims: int, pairs: str, factor: V, weight: Row | None
) -> list[tuple[int, V]]:
    """A head, times factor (and weight, if any), its first dims turned: (first dim, lanes) of all
    pieces.

    turns: cosines of the dims / 2 pairs, then their sines.
    """
    half = dims // 2
    n = math.gcd(half, 16)
    pieces: list[tuple[int, V]] = []

    def read(at: int, count: int) -> V:
        scaled = x.load(at, count) * splat(factor, count)
        return scaled * weight.load(at, count) if weight is not None else scaled

    for i in range(0, half, n):
        cos, sin = turns.load(i, n), turns.load(half + i, n)
        if pairs == "halves":
            a, b = read(i, n), read(half + i, n)
            pieces += [(i, a * cos - b * sin), (half + i, a * sin + b * cos)]
        else:
            both = read(2 * i, 2 * n)
            a, b = both[0 : 2 * n : 2], both[1 : 2 * n : 2]
            mixed = tuple(k // 2 + (k % 2) * n for k in range(2 * n))
            pieces.append(
                (2 * i, emit("shuffle", a * cos - b * sin, a * sin + b * cos, lanes=mixed))
            )
    n = math.gcd(head_dim - dims, 16)
    return pieces + [(at, read(at, n)) for at in range(dims, head_dim, n or 1)]


@kernel
def rope_store(
    lo: size, hi: size, q_out: Out.f32, kv: Out.u8, q: In.f32, k: In.f32, v: In.f32,
    positions: In.i32, sequences: In.i32, tables: In.i32, turns: In.f32, q_weight: In.f32,
    k_weight: In.f32, max_pages: size, q_stride: size, k_stride: size, v_stride: size, scale: real,
    eps: real,
    *, n_heads: int, n_kv: int, head_dim: int, dims: int, pairs: str, normed: bool,
):  # fmt: skip
    """Tile t: token t. q_out[t] = its heads, turned and times scale * log2(e); k, turned, and v go
    to the token's slot.
    """
    page_bytes = n_kv * head_bytes(head_dim)
    for t in loop(lo, hi):
        position, slot = index(positions[t]), index(positions[t]) % PAGE
        turn = turns.at(position * dims)
        page = page_address(kv, tables, index(sequences[t]), position, max_pages, page_bytes)

        def pieces(head: Row, weight: Row, turn: Row = turn) -> list[tuple[int, V]]:
            """A head normed, if it is to be, and turned."""
            factor = rms_scale(head, head_dim, eps) if normed else cast(index(1), f32)
            return turned(head, turn, head_dim, dims, pairs, factor, weight if normed else None)

        for h in loop(n_heads):
            for at, x in pieces(q.at(t * q_stride + h * head_dim), q_weight):
                q_out.store(x * splat(scale * LOG2E, x.lanes), (t * n_heads + h) * head_dim + at)
        for h in loop(n_kv):
            here = page.past(h * head_bytes(head_dim))
            for at, x in pieces(k.at(t * k_stride + h * head_dim), k_weight):
                short = storable(x)
                for i in range(x.lanes):
                    here.past(key_offset(at + i, slot), f16).store(short[i])
            store_values(here, v.at(t * v_stride + h * head_dim), head_dim, slot)


def store_values(page: Row, v: Row, head_dim: int, slot: V) -> None:
    """A head's values to its slot."""
    n = math.gcd(head_dim, 16)
    for at in range(0, head_dim, n):
        page.past(value_offset(at, slot, head_dim), f16).store(storable(v.load(at, n)))


def storable(x: V) -> V:
    """x as f16, infinities and what is too large as the largest: a weight of 0 must hide it."""
    low, high = full(f32, -F16_MAX, x.lanes), full(f32, F16_MAX, x.lanes)
    return cast(minimum(high, maximum(low, x)), f16)  # in this order a NaN stays one
