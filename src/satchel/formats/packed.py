"""Weights as the matrix kernels read them: 16 rows in the lanes, every load a whole line.

A *line* is 64 bytes, one dword for each of 16 rows. A packed block holds one file block of each
of the 16 rows:

    d (16 halves) | least or dmin (16 halves, where the format has offsets) | chunk | chunk | ...

and a chunk, 32 or 64 weights of each row:

    a line of scale bytes (k-quants) | the lines of each bit plane of the codes, widest plane first

A *quad* is 4 neighbours of a row, the unit of a dot product. A plane of b bits has 8/b quads in
a line: slot p (bits b*p and up of each byte) of line m of n is quad p*n + m. So a kernel finds
any quad with one shift and one mask.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from satchel.base.dtypes import DType, bf16, f16, f32
from satchel.base.errors import UnsupportedError
from satchel.formats import (
    BF16,
    F16,
    F32,
    Q2_K,
    Q3_K,
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
)
from satchel.formats.block import Block, Bytes, Fields
from satchel.formats.k_quants import eight_sixes, sixteen_sixes

ROWS = 16
LINE = 64

SIGNED = "_signed"
"""What the name of a format is followed by in that of its layout with signed codes."""


@dataclass(frozen=True)
class Packed:
    """The layout of a quantized format. `zero` is the code of weight 0 where codes are stored from
    0 up; `scale_bytes` says what a chunk's line of scales holds: "" (none), "signed" (a scale a
    group), "scale+min" (all scales, then all mins), "nibbles" (scale and min of a group in one
    byte). With `signed`, codes of eight bits are stored as they are.
    """

    block: type[Block]
    planes: tuple[int, ...]
    zero: int = 0
    has_offset: bool = False
    scale_bytes: str = ""
    signed: bool = False

    @property
    def name(self) -> str:
        return self.block.name + SIGNED * self.signed

    @property
    def elements(self) -> int:
        """Weights of a row in a block."""
        return self.block.elements

    @property
    def chunk(self) -> int:
        """Weights of a row in a chunk."""
        return min(64, self.elements)

    @property
    def group(self) -> int:
        """Weights of a row under one scale."""
        return self.elements // self.block.groups

    @property
    def top(self) -> int:
        """The greatest code, as stored, where none is signed."""
        return (1 << sum(self.planes)) - 1

    @property
    def header_bytes(self) -> int:
        return ROWS * 2 * (2 if self.has_offset else 1)

    @property
    def chunk_bytes(self) -> int:
        return LINE * (bool(self.scale_bytes) + self.chunk // 4 * sum(self.planes) // 8)

    @property
    def bytes(self) -> int:
        """Bytes of a packed block: of 16 rows."""
        return self.header_bytes + self.elements // self.chunk * self.chunk_bytes

    def packed_bytes(self, n_rows: int, n_columns: int) -> int:
        """Bytes of a whole matrix; rows are filled up to a multiple of 16."""
        return -(-n_rows // ROWS) * (n_columns // self.elements) * self.bytes

    def pack(self, raw: Bytes) -> Bytes:
        """File rows [n, row_bytes] -> [tiles, blocks, bytes], with rows of zeros at the end of the
        last tile.
        """
        n, n_blocks = len(raw), raw.shape[1] // self.block.bytes
        tiles = -(-n // ROWS)
        out = np.zeros((tiles, n_blocks, self.bytes), np.uint8)
        for tile in range(tiles):
            rows = raw[tile * ROWS : (tile + 1) * ROWS]
            if len(rows) < ROWS:
                rows = np.concatenate([rows, np.zeros((ROWS - len(rows), rows.shape[1]), np.uint8)])
            self._pack_tile(rows, out[tile])
        return out

    def _pack_tile(self, rows: Bytes, out: Bytes) -> None:
        n_blocks, chunks = len(out), self.elements // self.chunk
        fields = self.block.fields(rows)
        halves = [fields["d"]] + ([fields[self._offset_field]] if self.has_offset else [])
        head = np.stack([h.T for h in halves], 1)  # [blocks, 1 or 2, rows]
        out[:, : self.header_bytes] = (
            np.ascontiguousarray(head).view(np.uint8).reshape(n_blocks, -1)
        )
        body = out[:, self.header_bytes :].reshape(n_blocks, chunks, -1, ROWS, 4)
        codes = (self.block.codes(rows) + np.int8(self.zero if self.zero < 128 else -128)).view(
            np.uint8
        )
        if self.scale_bytes:
            body[:, :, 0] = self._scale_lines(fields).transpose(1, 2, 0, 3)
        at, shift = bool(self.scale_bytes), 0
        quads = codes.reshape(ROWS, n_blocks, chunks, self.chunk // 4, 4).transpose(1, 2, 3, 0, 4)
        for bits in self.planes:
            slots, plane = 8 // bits, (quads >> shift) & ((1 << bits) - 1)
            n_lines = self.chunk // 4 // slots
            by_slot = plane.reshape(n_blocks, chunks, slots, n_lines, ROWS, 4)
            lines = body[:, :, at : at + n_lines]
            for p in range(slots):
                lines |= by_slot[:, :, p] << (bits * p)
            at, shift = at + n_lines, shift + bits

    @property
    def _offset_field(self) -> str:
        return "dmin" if self.scale_bytes else "m"

    def _scale_lines(self, fields: Fields) -> Bytes:
        """[rows, blocks, chunks, 4]: the bytes of each chunk's scales."""
        name = self.name
        if name == "Q2_K":
            scales = fields["scales_and_mins"]
        elif name == "Q6_K":
            scales = fields["group_scales"].view(np.uint8)
        elif name == "Q3_K":
            scales = sixteen_sixes(fields["packed_scales"]) - np.uint8(32)
        else:
            by_group = np.stack(eight_sixes(fields["scales_and_mins"]), -1)  # [rows, blocks, 8, 2]
            by_chunk = by_group.reshape(*by_group.shape[:2], 4, 2, 2)
            return by_chunk.swapaxes(-1, -2).reshape(*by_group.shape[:2], 4, 4)
        return scales.reshape(*scales.shape[:2], 4, 4)


@dataclass(frozen=True)
class PackedFloats:
    """The layout of plain numbers: for each column, its 16 rows' elements side by side."""

    block: type[Block]
    dtype: DType

    @property
    def name(self) -> str:
        return self.block.name

    @property
    def elements(self) -> int:
        return 1

    @property
    def bytes(self) -> int:
        """Bytes of a column: of 16 rows."""
        return ROWS * self.dtype.bytes

    def packed_bytes(self, n_rows: int, n_columns: int) -> int:
        """Bytes of a whole matrix; rows are filled up to a multiple of 16."""
        return -(-n_rows // ROWS) * n_columns * self.bytes

    def pack(self, raw: Bytes) -> Bytes:
        """File rows [n, row_bytes] -> [tiles, columns, bytes]."""
        n, n_columns = len(raw), raw.shape[1] // self.dtype.bytes
        tiles = -(-n // ROWS)
        rows = np.zeros((tiles * ROWS, n_columns), self.dtype.numpy)
        rows[:n] = np.ascontiguousarray(raw).view(self.dtype.numpy)
        by_tile = rows.reshape(tiles, ROWS, n_columns).swapaxes(1, 2)
        return np.ascontiguousarray(by_tile).view(np.uint8).reshape(tiles, n_columns, self.bytes)


PACKED: dict[str, Packed | PackedFloats] = {
    layout.name: layout
    for layout in (
        PackedFloats(F32, f32),
        PackedFloats(F16, f16),
        PackedFloats(BF16, bf16),
        Packed(Q4_0, (4,), zero=8),
        Packed(Q4_1, (4,), has_offset=True),
        Packed(Q5_0, (4, 1), zero=16),
        Packed(Q5_1, (4, 1), has_offset=True),
        Packed(Q8_0, (8,), zero=128),
        Packed(Q8_0, (8,), signed=True),
        Packed(Q2_K, (2,), has_offset=True, scale_bytes="nibbles"),
        Packed(Q3_K, (2, 1), zero=4, scale_bytes="signed"),
        Packed(Q4_K, (4,), has_offset=True, scale_bytes="scale+min"),
        Packed(Q5_K, (4, 1), has_offset=True, scale_bytes="scale+min"),
        Packed(Q6_K, (4, 2), zero=32, scale_bytes="signed"),
    )
}


def packed(name: str) -> Packed | PackedFloats:
    """A layout by its name; that of a format bears the format's. Raises UnsupportedError."""
    if name not in PACKED:
        known = dict.fromkeys(layout.block.name for layout in PACKED.values())
        raise UnsupportedError(f"block type {name} has no kernels; there are {', '.join(known)}")
    return PACKED[name]


def packed_for(name: str, signed_codes: bool) -> Packed | PackedFloats:
    """The layout of a format where codes of eight bits are better signed, or are not. Raises
    UnsupportedError.
    """
    signed = PACKED.get(name + SIGNED) if signed_codes else None
    return signed or packed(name)
