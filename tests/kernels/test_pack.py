"""Packing by the kernel: to the bit what formats/packed.py defines, on every target."""

from __future__ import annotations

import harness
import numpy as np
import pytest
import weights

from satchel.formats.packed import ROWS, packed
from satchel.kernels.pack import pack


@pytest.mark.parametrize("target", harness.everywhere())
@pytest.mark.parametrize("format", weights.LAYOUTS)
def test_packs_as_the_layout_says(format: str, target: str) -> None:
    layout = packed(format)
    columns = 3 * layout.elements if layout.elements > 1 else 37
    raw = weights.random_blocks(format, 2 * ROWS, columns, np.random.default_rng(1))
    assert (_packed(target, format, raw, columns, 1, 0) == layout.pack(raw)).all()


@pytest.mark.parametrize("format", ["Q4_K", "F16"])
def test_a_tile_of_each_matrix_in_turn(format: str) -> None:
    layout, columns = packed(format), 512
    raw = weights.random_blocks(format, 2 * ROWS, columns, np.random.default_rng(2))
    for part in (0, 1):
        out = _packed(harness.here()[0], format, raw, columns, 2, part)
        assert (out == layout.pack(raw)).all()


def _packed(
    target: str, format: str, raw: weights.Raw, columns: int, n_parts: int, part: int
) -> weights.Raw:
    """What the kernel makes of part `part` of `n_parts` that are interleaved; checks that no byte
    of the others is touched.
    """
    layout = packed(format)
    n_blocks, tiles = columns // layout.elements, len(raw) // ROWS
    tile_bytes = n_blocks * layout.bytes
    whole = np.full((tiles, n_parts, tile_bytes), 0x5A, np.uint8)
    out = whole.reshape(-1)
    start = out[part * tile_bytes :] if part else out
    args: dict[str, harness.Arg] = {
        "out": start,
        "x": raw,
        "n_blocks": n_blocks,
        "tile_stride": n_parts * tile_bytes,
    }
    harness.call(pack, target, tiles, args, format=format)
    others = np.delete(whole, part, 1)
    assert (others == 0x5A).all()
    return whole[:, part].reshape(tiles, n_blocks, layout.bytes)
