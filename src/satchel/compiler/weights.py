"""What the plan's weight buffers hold, and how it is made from the file: plain data, so that it can
be made once and kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from satchel.files.checkpoint import Checkpoint
from satchel.formats.packed import packed
from satchel.graph.graph import Node
from satchel.graph.rope import Scaling, frequencies

Bytes: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Matrix:
    """Matrices of one format and width, packed, one after another; `format`: the layout's name;
    `interleaved`: a tile of each in turn.
    """

    tensors: tuple[str, ...]
    format: str
    rows: tuple[int, ...]
    columns: int
    interleaved: bool = False

    @property
    def bytes(self) -> int:
        return sum(packed(self.format).packed_bytes(n, self.columns) for n in self.rows)


@dataclass(frozen=True)
class Vector:
    """Vectors as f32, one after another, each of them filled up to `padded` elements with zeros."""

    tensors: tuple[str, ...]
    padded: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return 4 * sum(self.padded)

    def make(self, checkpoint: Checkpoint) -> Bytes:
        out: list[NDArray[np.float32]] = []
        for name, n in zip(self.tensors, self.padded, strict=True):
            values = checkpoint.tensor(name).format.decode(checkpoint.raw(name)).reshape(-1)
            out.append(np.concatenate([values, np.zeros(n - len(values), np.float32)]))
        return np.concatenate(out).view(np.uint8)


@dataclass(frozen=True)
class FileRows:
    """A tensor as it lies in the file, which stays mapped: nothing is made."""

    tensor: str
    bytes: int


@dataclass(frozen=True)
class Turns:
    """For each position the cosines, then the sines, of its pairs: f32 [positions, 2, dims / 2]."""

    positions: int
    dims: int
    theta: float
    scaling: Scaling
    factors: str | None = None

    @property
    def bytes(self) -> int:
        return self.positions * self.dims // 2 * 2 * 4

    def make(self, checkpoint: Checkpoint) -> Bytes:
        factors = None
        if self.factors is not None:
            raw = checkpoint.raw(self.factors)
            factors = checkpoint.tensor(self.factors).format.decode(raw).reshape(-1)
        angles = np.arange(self.positions)[:, None] * frequencies(
            self.dims, self.theta, self.scaling, factors
        )
        both = np.stack([np.cos(angles), np.sin(angles)], axis=1) * self.scaling.magnitude
        return both.astype(np.float32).reshape(-1).view(np.uint8)


Weight: TypeAlias = Matrix | Vector | FileRows | Turns


def matrix_of(nodes: tuple[Node, ...], layout: str, interleaved: bool = False) -> Matrix:
    """The matrix of weight leaves of one format, in the layout of this name."""
    rows = tuple(int(n.shape[0]) for n in nodes)
    return Matrix(tuple(n.name for n in nodes), layout, rows, int(nodes[0].shape[1]), interleaved)
