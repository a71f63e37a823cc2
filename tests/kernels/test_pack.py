"""Packing by the kernel: to the bit what formats/packed.py defines, on every target."""

from __future__ import annotations

from dataclasses import dataclass

import harness
import numpy as np
import pytest
import weights

from satchel.formats.packed import ROWS, packed
from satchel.kernels.pack import pack
from satchel.lang.target import TARGETS


@dataclass
class Packing:
    """Random rows, and room for part `part` of `n_parts` matrices whose tiles are interleaved."""

    format: str
    columns: int
    n_parts: int = 1
    part: int = 0

    def __post_init__(self) -> None:
        self.layout = packed(self.format)
        self.n_blocks = self.columns // self.layout.elements
        self.raw = weights.random_blocks(
            self.format, 2 * ROWS, self.columns, np.random.default_rng(1)
        )
        shape = (2, self.n_parts, self.n_blocks * self.layout.bytes)
        self.out = np.full(shape, 0x5A, np.uint8)

    def call(self, target: str) -> harness.Call:
        tile_bytes = self.out.shape[-1]
        args: dict[str, harness.Arg] = {
            "out": self.out.reshape(-1)[self.part * tile_bytes :],
            "x": self.raw,
            "n_blocks": self.n_blocks,
            "tile_stride": self.n_parts * tile_bytes,
        }
        return harness.Call(pack.build(TARGETS[target], format=self.format), args, len(self.out))

    def check(self) -> None:
        """It is what the layout says, and no byte of the other parts is touched."""
        found = self.out[:, self.part].reshape(len(self.out), self.n_blocks, self.layout.bytes)
        assert (found == self.layout.pack(self.raw)).all(), self.format
        assert (np.delete(self.out, self.part, 1) == 0x5A).all(), self.format


@pytest.mark.parametrize("target", harness.everywhere())
def test_packs_as_the_layout_says(target: str) -> None:
    """All formats in one program, as an emulated one takes a while to build."""
    blocks = {name: packed(name).elements for name in weights.LAYOUTS}
    every = [Packing(name, 3 * n if n > 1 else 37) for name, n in blocks.items()]
    harness.run([one.call(target) for one in every])
    for one in every:
        one.check()


@pytest.mark.parametrize("format", ["Q4_K", "F16"])
def test_a_tile_of_each_matrix_in_turn(format: str) -> None:
    for part in (0, 1):
        one = Packing(format, 512, 2, part)
        harness.run([one.call(harness.here()[0])])
        one.check()
