"""Positions: q and k are turned, and k and v put into the KV pages."""

from __future__ import annotations

import math

from satchel.base.dtypes import f32
from satchel.kernels.cache_types import F16
from satchel.kernels.norm import rms_scale
from satchel.kernels.pages import PAGE, Pieces, finite, head_of, page_address, registers
from satchel.kernels.rotate import rotated
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast
from satchel.lang.trace import (
    In,
    Out,
    Row,
    V,
    emit,
    index,
    loop,
    real,
    size,
    splat,
)

LOG2E = 1.4426950408889634


def turned(
    x: Row, turns: Row, head_dim: int, dims: int, pairs: str, factor: V, weight: Row | None
) -> Pieces:
    """A head, times factor (and weight, if any), its first dims turned.

    turns: cosines of the dims / 2 pairs, then their sines.
    """
    half = dims // 2
    n = math.gcd(half, 16)
    pieces: Pieces = []

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
    types: tuple[str, str] = (F16, F16),
):  # fmt: skip
    """Tile t: token t. q_out[t] = its heads, turned and times scale * log2(e); k, turned, and v go
    to the token's slot. `types`: of K and V; where one is rotated, so is q, or v.
    """
    kept = head_of(types, head_dim)
    for t in loop(lo, hi):
        position, slot = index(positions[t]), index(positions[t]) % PAGE
        turn = turns.at(position * dims)
        page = page_address(kv, tables, index(sequences[t]), position, max_pages, n_kv * kept.bytes)

        def pieces(head: Row, weight: Row, turn: Row = turn) -> Pieces:
            """A head normed, if it is to be, and turned."""
            factor = rms_scale(head, head_dim, eps) if normed else cast(index(1), f32)
            return turned(head, turn, head_dim, dims, pairs, factor, weight if normed else None)

        for h in loop(n_heads):
            head = pieces(q.at(t * q_stride + h * head_dim), q_weight)
            for at, x in rotated_if(kept.keys.rotated, head, head_dim):
                q_out.store(x * splat(scale * LOG2E, x.lanes), (t * n_heads + h) * head_dim + at)
        for h in loop(n_kv):
            here = page.past(h * kept.bytes)
            head = pieces(k.at(t * k_stride + h * head_dim), k_weight)
            head = rotated_if(kept.keys.rotated, head, head_dim)
            kept.keys.store_keys(here, head_dim, head, slot)
            values, n = v.at(t * v_stride + h * head_dim), math.gcd(head_dim, 16)
            head = [(at, values.load(at, n)) for at in range(0, head_dim, n)]
            head = rotated_if(kept.values.rotated, head, head_dim)
            kept.values.store_values(kept.values_of(here), head_dim, head, slot)


def rotated_if(wanted: bool, head: Pieces, head_dim: int) -> Pieces:
    """A head after its rotation, or as it is. What is too large to be kept must not become a NaN
    here.
    """
    if not wanted:
        return head
    n = math.gcd(head_dim, 16)
    x = [finite(v) for v in registers(head, n)]
    return [(i * n, v) for i, v in enumerate(rotated(x))]
