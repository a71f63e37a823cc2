"""y = x W^T over packed weights: matrix x vector and matrix x matrix in one source, for every
format.

A tile is 16 rows of W (or 16 of the gate and 16 of the up matrix) for a run of the step's
tokens. Tokens are taken several at a time, so that a line of weights is unpacked once for all of
them; each (row, token) adds its groups in one order, whatever the number of tokens beside it, so
the result's bits do not depend on the batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

from satchel.base.dtypes import f16, f32, i8, i32, u8
from satchel.formats.packed import LINE, ROWS, Packed, PackedFloats, packed
from satchel.kernels.activation import gelu, silu
from satchel.kernels.quantize import (
    ALL,
    BLOCK_BYTES,
    CODES,
    FIRST,
    LAST,
    MINUS_SUMS,
    SCALE,
    SCALED_SUMS,
    pass_ends,
)
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast, dot4_signed, dot_quads, muladd, splat_bytes
from satchel.lang.target import Target
from satchel.lang.trace import Acc, In, Out, Row, V, acc, full, loop, minimum, size, splat
from satchel.machine.tiles import Tiles

GATES = {"silu": silu, "gelu": gelu}


@dataclass(frozen=True)
class Group:
    """Weights of 16 rows under one scale each: what their codes count, and what is to be added to
    each.
    """

    scale: V
    offset: V | None


@dataclass(frozen=True)
class Tokens:
    """What a pass reads of x: for each token, or digit of one, a row that begins at its block here;
    the next block lies `apart` bytes further.
    """

    rows: list[Row]
    apart: int

    def past(self, n_blocks: Any) -> Tokens:
        return Tokens([row.past(n_blocks * self.apart) for row in self.rows], self.apart)


@dataclass(frozen=True)
class Half:
    """Which of the 16 rows: `lanes` of them from `at` on."""

    at: int
    lanes: int

    def line(self, row: Row, n_bytes: Any) -> V:
        """This half of the line at a byte offset, as bytes."""
        return row.past(n_bytes, u8).load(4 * self.at, 4 * self.lanes)

    def halfs(self, row: Row, n_bytes: Any) -> V:
        """This half of 16 numbers of type f16, as f32."""
        return cast(row.past(n_bytes, f16).load(self.at, self.lanes), f32)


def read_quads(layout: Packed, chunk: Row, which: range, half: Half) -> list[V]:
    """The codes of a chunk's quads: for each, 4 bytes a row."""
    at, shift, n_quads = LINE * bool(layout.scale_bytes), 0, layout.chunk // 4
    quads: dict[int, V] = {}
    for bits in layout.planes:
        n_lines = n_quads * bits // 8
        for i in which:
            p, m = divmod(i, n_lines)
            piece = half.line(chunk, at + LINE * m) >> (bits * p)
            if bits < 8 and p < 8 // bits - 1:
                piece = piece & ((1 << bits) - 1)
            quads[i] = quads[i] | (piece << shift) if shift else piece
        at, shift = at + LINE * n_lines, shift + bits
    return [quad.bits(i8) if layout.signed else quad for quad in quads.values()]


def each_quads(
    layout: Packed, chunk: Row, half: Half, n_tokens: int, at_once: int
) -> Iterator[list[V]]:
    """A chunk's quads, `at_once` of a group after others; those of eight bits one by one, since no
    word holds the products of two. The more tokens there are, the scarcer are registers, and the
    fewer quads are unpacked ahead, though their line may be read again for the others.
    """
    n, most = layout.chunk // 4, min(at_once, layout.group // 4) if layout.top < 255 else 1
    ahead = n if n_tokens <= 2 else CODES // 4 if n_tokens <= 4 else most
    again = Row(chunk.base, chunk.dtype, constant=False)
    for first in range(0, n, ahead):
        quads = read_quads(layout, again, range(first, first + ahead), half)
        yield from (quads[i : i + most] for i in range(0, ahead, most))


def read_groups(layout: Packed, block: Row, chunk: Row, half: Half) -> list[Group]:
    """A chunk's, as f32 a row."""
    d, n_groups = half.halfs(block, 0), layout.chunk // layout.group
    least = half.halfs(block, 2 * ROWS) if layout.has_offset else None
    if not layout.scale_bytes:
        return [Group(d, least)] * n_groups
    dwords = half.line(chunk, 0).bits(i32)

    def byte(i: int, mask: int = 255) -> V:
        return (dwords >> (8 * i)) & mask

    groups: list[Group] = []
    for g in range(n_groups):
        if layout.scale_bytes == "signed":
            scale, offset = (dwords << (24 - 8 * g)) >> 24, None
        elif layout.scale_bytes == "nibbles":
            scale, offset = byte(g, 15), (dwords >> (8 * g + 4)) & 15
        else:
            scale, offset = byte(g), byte(g + n_groups)
        below = None if offset is None or least is None else cast(offset, f32) * least * -1.0
        groups.append(Group(cast(scale, f32) * d, below))
    return groups


def add_chunk(
    layout: Packed,
    totals: list[Acc],
    block: Row,
    chunk: Row,
    x: Tokens,
    half: Half,
    ahead: V,
    at_once: int,
) -> None:
    """Add a chunk's products for each token; x stands at the chunk's first code."""
    groups, n_blocks = read_groups(layout, block, chunk, half), layout.chunk // CODES
    quads = each_quads(layout, chunk, half, len(x.rows), at_once)
    per_block = len(groups) // n_blocks
    for b in range(n_blocks):
        if len(x.rows) > 2:
            ask_ahead(layout, chunk.past(ahead), b, n_blocks)
        own = groups[b * per_block : (b + 1) * per_block]
        add_block(layout, totals, own, quads, x.past(b).rows, half.lanes)


def add_block(
    layout: Packed,
    totals: list[Acc],
    groups: list[Group],
    quads: Iterator[list[V]],
    x: list[Row],
    lanes: int,
) -> None:
    """Add the products of a block of x: with one group of weights, or with two, one for each half
    of it.
    """
    parts = (ALL,) if len(groups) == 1 else (FIRST, LAST)
    if len(groups) == 1:
        sums = add_quads(layout, quads, ALL, x, lanes)
        for total, row, s in zip(totals, x, sums, strict=True):
            scale = groups[0].scale * splat(row.past(SCALE, f32).load(), lanes)
            total.value = muladd(s, scale, total.value)
    else:
        first, last = groups
        sums = [s * first.scale for s in add_quads(layout, quads, FIRST, x, lanes)]
        more = add_quads(layout, quads, LAST, x, lanes)
        for total, row, s, m in zip(totals, x, sums, more, strict=True):
            scale = splat(row.past(SCALE, f32).load(), lanes)
            total.value = muladd(muladd(m, last.scale, s), scale, total.value)
    for total, row in zip(totals, x, strict=True):
        for part, group in zip(parts, groups, strict=True):
            if group.offset is not None:
                scaled_sum = splat(row.past(SCALED_SUMS, f32).load(part), lanes)
                total.value = muladd(group.offset, scaled_sum, total.value)


def add_quads(
    layout: Packed, quads: Iterator[list[V]], part: int, x: list[Row], lanes: int
) -> list[V]:
    """For each token, the sum of a group's codes times its own."""
    sums = [start_sum(layout, row, part, lanes) for row in x]
    chains = [[s] + [full(i32, 0, lanes)] * (len(x) < 3 and part == ALL) for s in sums]
    at, end = ((0, CODES // 2), (CODES // 2, CODES), (0, CODES))[part]
    while at < end:
        some = next(quads)
        for own, row in zip(chains, x, strict=True):
            places = range(at, at + 4 * len(some), 4)
            codes = [splat_bytes(row.past(i, i32).load(), lanes, i8) for i in places]
            pairs = list(zip(some, codes, strict=True))
            for i in range(min(len(own), len(some))):
                k = (at // 4 + i) % len(own)
                own[k] = add_pairs(layout, own[k], pairs[i :: len(own)])
        at += 4 * len(some)
    return [cast(sum(own[1:], start=own[0]), f32) for own in chains]


def ask_ahead(layout: Packed, there: Row, part: int, parts: int) -> None:
    """Prefetch a part of a chunk's lines that come later. With work for several tokens on each
    line, the processor does not read on by itself; with one or two it does, and asking would only
    hinder it.
    """
    n_lines = layout.chunk_bytes // LINE
    for line in range(part * n_lines // parts, (part + 1) * n_lines // parts):
        there.past(LINE * line).prefetch()


def add_pairs(layout: Packed, s: V, pairs: list[tuple[V, V]]) -> V:
    """s and the products of quads, each with four codes of x, which are never -128."""
    if not layout.signed:
        return dot_quads(s, *chain.from_iterable(pairs), top=layout.top)
    for quad, codes in pairs:
        s = dot4_signed(s, quad, codes)
    return s


def start_sum(layout: Packed, x: Row, which: int, lanes: int) -> V:
    """What a sum of products starts at: codes are stored from 0 up, so take `zero` times the sum of
    x away.
    """
    if not layout.zero:
        return full(i32, 0, lanes)
    return splat(x.past(MINUS_SUMS, i32).load(which), lanes) << (layout.zero.bit_length() - 1)


def products(
    layout: Packed | PackedFloats,
    w: Row,
    x: Tokens,
    n_blocks: V,
    half: Half,
    ahead: V,
    at_once: int,
    digits: int,
) -> list[V]:
    """16 rows (or half of them) times x: one vector a token."""
    totals = [acc(f32, half.lanes) for _ in x.rows]
    for b in loop(n_blocks):
        block = w.past(b * layout.bytes)
        if isinstance(layout, PackedFloats):
            column = cast(block.past(0, layout.dtype).load(half.at, half.lanes), f32)
            for total, row in zip(totals, x.rows, strict=True):
                total.value = muladd(
                    column, splat(row.past(0, f32).load(b), half.lanes), total.value
                )
            continue
        codes = x.past(b * (layout.elements // CODES))
        for c in loop(layout.elements // layout.chunk) if layout.elements > layout.chunk else (0,):
            chunk = block.past(c * layout.chunk_bytes + layout.header_bytes)
            here = codes.past(c * (layout.chunk // CODES))
            add_chunk(layout, totals, block, chunk, here, half, ahead, at_once)
    parts = [total.value for total in totals]
    return [sum(parts[i + 1 : i + digits], start=parts[i]) for i in range(0, len(parts), digits)]


def token_runs(begin: Any, until: V, widths: tuple[int, ...]) -> Iterator[tuple[V, int]]:
    """The passes over tokens begin .. until: (first token, width)."""
    for width, end in zip(widths, pass_ends(begin, until, widths), strict=True):
        for t in loop(begin, end, width):
            yield t, width
        begin = end


@kernel
def matmul(
    lo: size,
    hi: size,
    y: Out.f32,
    w: In.u8,
    x: In.u8,
    bias: In.f32,
    residual: In.f32,
    n_blocks: size,
    n_tiles: size,
    n_tokens: size,
    run: size,
    ahead: size,
    x_bytes: size,
    y_stride: size,
    residual_stride: size,
    *,
    format: str,
    widths: tuple[int, ...],
    lanes: int,
    at_once: int,
    gate: str | None = None,
    has_bias: bool = False,
    has_residual: bool = False,
    digits: int = 1,
):
    """Tile i * n_tiles + r: y[t, 16r .. 16r+15] = W[those rows] . x[t] + bias + residual[t], for
    tokens t of run i.

    The n_tokens tokens are cut into runs of `run`, whose x a cache holds while all rows pass
    by. Weights are asked for `ahead` bytes before they are needed.

    x: of x_bytes for each token and digit: blocks of codes, in the order of the passes
    (kernels/quantize.py), or rows of f32 for plain formats. With a gate, tile r of w is 16 rows of
    the gate and 16 of the up matrix, and y = gate(g . x) * (u . x).

    at_once: quads of a group that each token of a pass takes before the next one does.
    """
    layout = packed(format)
    tile_bytes = n_blocks * layout.bytes
    for tile in loop(lo, hi):
        r, begin = tile % n_tiles, tile // n_tiles * run
        rows = w.past(r * tile_bytes * (2 if gate else 1))
        for t, width in token_runs(begin, minimum(begin + run, n_tokens), widths):
            n, first = width * digits, x.past(t * (digits * x_bytes))
            beside = x_bytes if isinstance(layout, PackedFloats) else BLOCK_BYTES
            tokens = Tokens([first.past(beside * i) for i in range(n)], n * BLOCK_BYTES)
            step = ROWS if width == 1 else lanes
            for at in range(0, ROWS, step):
                half, column = Half(at, step), r * ROWS + at
                out = products(layout, rows, tokens, n_blocks, half, ahead, at_once, digits)
                if gate:
                    up_rows = rows.past(tile_bytes)
                    up = products(layout, up_rows, tokens, n_blocks, half, ahead, at_once, digits)
                    out = [GATES[gate](g) * u for g, u in zip(out, up, strict=True)]
                for i, v in enumerate(out):
                    v = v + bias.load(column, step) if has_bias else v
                    if has_residual:
                        v = v + residual.load((t + i) * residual_stride + column, step)
                    y.store(v, (t + i) * y_stride + column)


def run_length(row_bytes: int, widest: int, tiles: Tiles) -> int:
    """Tokens in a run, for rows of x of so many bytes: whole passes of the widest.

    Each pass reads its few rows of x on and on, which the prefetcher likes, so they need not stay
    nearer than the cache that all cores share; the longer a run, the seldomer all weights are read.
    """
    n = min(tiles.longest_run, max(2 * widest, tiles.run_bytes // row_bytes))
    return max(1, n // widest) * widest


def pass_shape(target: Target, digits: int, tiles: Tiles) -> dict[str, Any]:
    """Widths and lanes of a pass over tokens, and how many quads each token takes at once.

    By default a pass is as wide as repays: where registers are few, sums that find none cost less
    than unpacking weights again for other tokens; but on the least targets, code would grow too
    long to be compiled in a moment.

    That is one, which all take before the next is unpacked, so that all sums stay in registers; but
    a group's where products are added in words: a token's are there only while it has its turn.
    """
    bits, registers = target.bits, target.registers
    lanes = tiles.lanes or min(ROWS, bits // 32 * (2 if bits == 128 and registers == 32 else 1))
    most = max(1, (tiles.tokens or (8 if bits * registers >= 4096 else 4)) // digits)
    widths = (most, *(w for w in (8, 4, 2, 1) if w < most))
    return {"widths": widths, "lanes": lanes, "at_once": CODES // 4 if target.adds_words else 1}
