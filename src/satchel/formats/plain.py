"""Weights as they are: floating-point numbers without scales, one to a block."""

from __future__ import annotations

import numpy as np

from satchel.base.dtypes import bf16, f16, f32
from satchel.formats.block import Block, Fields, Floats


class F32(Block, elements=1, bytes=4):
    type_id = 0
    x = f32

    @classmethod
    def _decode_blocks(cls, block: Fields, out: Floats) -> None:
        out[:, 0] = block["x"]

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        block["x"][:] = x[:, 0]


class F16(Block, elements=1, bytes=2):
    type_id = 1
    x = f16

    @classmethod
    def _decode_blocks(cls, block: Fields, out: Floats) -> None:
        out[:, 0] = block["x"]

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        with np.errstate(all="ignore"):  # too large for a half is infinite
            block["x"][:] = x[:, 0]


class BF16(Block, elements=1, bytes=2):
    """The upper half of a 32-bit float; rounded to nearest, ties to even."""

    type_id = 30
    x = bf16

    @classmethod
    def _decode_blocks(cls, block: Fields, out: Floats) -> None:
        bits = out[:, 0].view(np.uint32)
        bits[:] = block["x"]
        bits <<= 16

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        bits = x[:, 0].view(np.uint32)
        upper = bits >> 16
        rounded = (bits + (np.uint32(0x7FFF) + (upper & 1))) >> 16
        # A NaN must not be rounded up into an infinity: it keeps its upper half, made quiet.
        block["x"][:] = np.where(np.isnan(x[:, 0]), upper | 0x40, rounded)
