"""Weights as the file has them, read in a kernel: 16 neighbours of a row at a time, for every
format.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from satchel.base.dtypes import DType, f16, f32, i8, i32, u8, u32
from satchel.formats import BF16, F16, F32
from satchel.formats.block import Block
from satchel.formats.packed import PackedFloats, packed
from satchel.lang.ops import cast
from satchel.lang.trace import Row, V, splat, table

RUN = 16


@dataclass(frozen=True)
class Run:
    """16 weights: scale * (codes - zero) + offset; codes are i32 from 0 up, scale and offset f32
    scalars.
    """

    codes: V
    zero: int
    scale: V
    offset: V | None

    def weights(self) -> V:
        """f32, to the bit what formats' decode gives: rounded after the product and the sum."""
        x = cast(self.codes - self.zero, f32) * splat(self.scale)
        return x if self.offset is None else x + splat(self.offset)


class FileBlock:
    """A block at a row's place; fields by name."""

    def __init__(self, format: type[Block], row: Row) -> None:
        self.format, self.row = format, row

    def bytes(self, name: str, at: int = 0, dtype: DType = u8) -> V:
        """16 bytes of a field, as i32."""
        return cast(self.row.past(self.format.layout[name].offset + at, dtype).load(0, RUN), i32)

    def byte(self, name: str, at: int, dtype: DType = u8) -> V:
        """One byte of a field, as i32."""
        return cast(self.row.past(self.format.layout[name].offset + at, dtype).load(), i32)

    def half(self, name: str) -> V:
        """A scale, as f32."""
        return cast(self.row.past(self.format.layout[name].offset, f16).load(), f32)


def read_block(format: type[Block], row: Row) -> Iterator[Run]:
    """The runs of a quantized block, in order."""
    block = FileBlock(format, row)
    read = {16: _sixteenth, 8: _eighth, 1: _whole}[format.groups]
    for r in range(format.elements // RUN):
        yield read(block, r)


def _whole(block: FileBlock, r: int) -> Run:
    """One scale a block: codes 0..15 are low nibbles, 16..31 high ones; the fifth bits lie in a
    dword.
    """
    name = block.format.name
    if name == "Q8_0":
        return Run(block.bytes("qs", RUN * r, i8) + 128, 128, block.half("d"), None)
    codes = (block.bytes("qs") >> (4 * r)) & 15
    if name in ("Q5_0", "Q5_1"):
        fifths = block.row.past(block.format.layout["qh"].offset, u32).load()
        bit = table(u32, range(RUN * r, RUN * r + RUN))
        codes = codes | cast(((splat(fifths) >> bit) & 1) << 4, i32)
    layout = packed(name)
    assert not isinstance(layout, PackedFloats)
    return Run(codes, layout.zero, block.half("d"), block.half("m") if layout.has_offset else None)


def _eighth(block: FileBlock, r: int) -> Run:
    """Q4_K and Q5_K: a scale and a min for each 32, 6 bits each."""
    group, half = divmod(r, 2)
    codes = (block.bytes("qs", 32 * (group // 2) + RUN * half) >> (4 * (group % 2))) & 15
    if block.format.name == "Q5_K":
        codes = codes | (((block.bytes("qh", RUN * half) >> group) & 1) << 4)

    def byte(i: int) -> V:
        return block.byte("scales_and_mins", i)

    if group < 4:
        scale, least = byte(group) & 63, byte(4 + group) & 63
    else:
        scale = (byte(4 + group) & 15) | ((byte(group - 4) >> 2) & 48)
        least = (byte(4 + group) >> 4) | ((byte(group) >> 2) & 48)
    return Run(
        codes, 0, block.half("d") * cast(scale, f32), -(block.half("dmin") * cast(least, f32))
    )


def _sixteenth(block: FileBlock, r: int) -> Run:
    """Q2_K, Q3_K and Q6_K: a scale for each 16. Codes lie in two halves of 128, four bit groups
    deep.
    """
    name, (half, rest) = block.format.name, divmod(r, 8)
    depth, at = rest // 2, RUN * (r % 2)
    d = block.half("d")
    if name == "Q6_K":
        low = (block.bytes("ql", 64 * half + 32 * (depth % 2) + at) >> (4 * (depth // 2))) & 15
        high = (block.bytes("qh", 32 * half + at) >> (2 * depth)) & 3
        return Run(low | (high << 4), 32, d * cast(block.byte("group_scales", r, i8), f32), None)
    codes = (block.bytes("qs", 32 * half + at) >> (2 * depth)) & 3
    if name == "Q2_K":
        both = block.byte("scales_and_mins", r)
        return Run(codes, 0, d * cast(both & 15, f32), -(block.half("dmin") * cast(both >> 4, f32)))
    codes = codes | (((block.bytes("hmask", at) >> (4 * half + depth)) & 1) << 2)
    low = (block.byte("packed_scales", r % 8) >> (4 * (r // 8))) & 15
    high = (block.byte("packed_scales", 8 + r % 4) >> (2 * (r // 4))) & 3
    return Run(codes, 4, d * cast((low | (high << 4)) - 32, f32), None)


PLAIN = (F32, F16, BF16)
