"""Random weights in every format, and what they are worth."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from satchel.formats.packed import PACKED, PackedFloats

Raw = NDArray[np.uint8]
LAYOUTS = tuple(PACKED)
FORMATS = tuple(dict.fromkeys(layout.block.name for layout in PACKED.values()))
QUANTIZED = tuple(f for f in LAYOUTS if not isinstance(PACKED[f], PackedFloats))
HALVES = ("d", "m", "dmin")


def random_blocks(format: str, rows: int, columns: int, rng: np.random.Generator) -> Raw:
    """File rows of any codes and any inner scales, their halves of a sane size and either sign.

    Of the first row all bits of codes and inner scales are clear, of the second all are set.
    """
    block = PACKED[format].block
    if format not in QUANTIZED:
        return block.encode(rng.standard_normal((rows, columns)).astype(np.float32))
    raw = rng.integers(0, 256, (rows, columns // block.elements, block.bytes), np.uint8)
    raw[0], raw[min(1, rows - 1)] = 0, 255
    for name in HALVES:
        if name in block.layout:
            at = block.layout[name].offset
            halves = rng.uniform(-0.1, 0.1, raw.shape[:2]).astype(np.float16)
            raw[..., at : at + 2] = halves[..., None].view(np.uint8)
    return raw.reshape(rows, -1)


def decoded(format: str, raw: Raw) -> NDArray[np.float64]:
    """The weights [rows, columns]."""
    return PACKED[format].block.decode(raw).astype(np.float64)


def sizes(format: str, raw: Raw) -> NDArray[np.float64]:
    """|scale * code| + |offset| of each weight: what a float32 sum may round by a part of."""
    block = PACKED[format].block
    if format not in QUANTIZED:
        return np.abs(decoded(format, raw))
    codes = np.abs(block.codes(raw).astype(np.float64))
    scale, offset = block.scales(raw)
    n = codes.shape[1] // scale.shape[1]
    size = codes * np.repeat(np.abs(scale), n, 1)
    return size if offset is None else size + np.repeat(np.abs(offset), n, 1)
