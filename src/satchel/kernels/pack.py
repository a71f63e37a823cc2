"""Weights from the file's rows to the layouts of formats/packed.py, bit for bit as `pack` there.

A row's codes are put together in registers as the dwords that it has in a chunk's lines, and each
is stored at its row's lane. So one source serves all formats, by what blocks.py reads of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from satchel.base.dtypes import DType, i32, u8, u16, u32
from satchel.formats.packed import LINE, ROWS, Packed, PackedFloats, packed
from satchel.kernels.blocks import RUN, FileBlock, read_block
from satchel.lang.kernel import kernel
from satchel.lang.ops import cast
from satchel.lang.trace import In, Out, Row, V, concat, loop, size, table


@kernel
def pack(
    lo: size,
    hi: size,
    out: Out.u8,
    x: In.u8,
    n_blocks: size,
    tile_stride: size,
    *,
    format: str,
):
    """Tile t: the 16 file rows from x's row 16 t on, n_blocks each, packed at out + t *
    tile_stride bytes.
    """
    layout = packed(format)
    block = layout.block
    row_bytes = n_blocks * block.bytes
    for t in loop(lo, hi):
        tile, rows = out.past(t * tile_stride), x.past(t * ROWS * row_bytes)
        if isinstance(layout, PackedFloats):
            _pack_floats(layout, tile, rows, n_blocks)
            continue
        for b in loop(n_blocks):
            for r in loop(ROWS):
                source = FileBlock(block, rows.past(r * row_bytes + b * block.bytes))
                _pack_row(layout, tile.past(b * layout.bytes), source, r)


def _pack_floats(layout: PackedFloats, tile: Row, rows: Row, n: V) -> None:
    """Numbers are moved as the integers that have their bits."""
    dtype = u32 if layout.dtype.bytes == 4 else u16
    whole = n - n % RUN
    for r in loop(ROWS):
        row, lane = rows.past(r * n * dtype.bytes, dtype), tile.past(r * dtype.bytes, dtype)
        for at in loop(0, whole, RUN):
            numbers = row.load(at, RUN)
            for i in range(RUN):
                lane.store(numbers[i], (at + i) * ROWS)
        for at in loop(whole, n):
            lane.store(row.load(at), at * ROWS)


def _pack_row(layout: Packed, out: Row, block: FileBlock, r: V) -> None:
    """The part of row r in a packed block."""
    halves = ("d", "dmin" if layout.scale_bytes else "m") if layout.has_offset else ("d",)
    for i, name in enumerate(halves):
        half = _field(block, name, 0, u16)
        out.past(2 * ROWS * i + r * 2, u16).store(half)
    lane, at = out.past(r * 4, u32), layout.header_bytes // 4
    runs = read_block(block.format, block.row)
    codes = [run.codes - run.zero if layout.signed else run.codes for run in runs]
    n_runs = layout.chunk // RUN
    for chunk in range(layout.elements // layout.chunk):
        if layout.scale_bytes:
            lane.store(_scale_bytes(layout.name, block, chunk), at)
            at += LINE // 4
        for dword in _lines(layout, codes[n_runs * chunk : n_runs * (chunk + 1)]):
            lane.store(dword, at)
            at += LINE // 4


def _lines(layout: Packed, codes: list[V]) -> Iterator[V]:
    """A row's dwords in the lines of a chunk, plane by plane."""
    shift = 0
    for bits in layout.planes:
        width = layout.chunk * bits // 8  # bytes that the row has in the plane
        parts: list[V] = []
        for i, run in enumerate(codes):
            slots = [bits * ((RUN * i + k) // width) for k in range(RUN)]
            plane = (run >> shift) & ((1 << bits) - 1)
            parts.append(plane << table(i32, slots) if any(slots) else plane)
        dwords = cast(_folded(parts, width), u8).bits(u32)
        for i in range(width // 4):
            yield dwords[i] if dwords.lanes > 1 else dwords
        shift += bits


def _folded(parts: list[V], width: int) -> V:
    """Lane i: the bits of lanes i, i + width, ... of all parts together."""
    per_part = max(1, width // RUN)
    sums = parts[:per_part]
    for i, part in enumerate(parts[per_part:]):
        sums[i % per_part] = sums[i % per_part] | part
    whole = concat(*sums)
    while whole.lanes > width:
        half = whole.lanes // 2
        whole = whole[:half] | whole[half:]
    return whole


def _field(block: FileBlock, name: str, at: int, dtype: DType = u32) -> V:
    """What lies so many bytes into a field."""
    return block.row.past(block.format.layout[name].offset + at, dtype).load()


def _scale_bytes(name: str, block: FileBlock, chunk: int) -> V:
    """The dword of a chunk's scales."""
    if name == "Q2_K":
        return _field(block, "scales_and_mins", 4 * chunk)
    if name == "Q6_K":
        return _field(block, "group_scales", 4 * chunk)
    if name == "Q3_K":
        low = _field(block, "packed_scales", 4 * (chunk % 2)) >> (4 * (chunk // 2))
        high = _field(block, "packed_scales", 8) >> (2 * chunk)
        sixes = (low & 0x0F0F0F0F) | ((high & 0x03030303) << 4)
        return (sixes.bits(u8) - 32).bits(u32)
    first, second, third = (_field(block, "scales_and_mins", 4 * i) for i in range(3))
    scales, mins = first & 0x3F3F3F3F, second & 0x3F3F3F3F
    if chunk >= 2:
        scales = (third & 0x0F0F0F0F) | ((first >> 2) & 0x30303030)
        mins = ((third >> 4) & 0x0F0F0F0F) | ((second >> 2) & 0x30303030)
    at = 16 * (chunk % 2)
    return ((scales >> at) & 0xFFFF) | (((mins >> at) & 0xFFFF) << 16)
