"""Pages of keys and values of one layer, by numpy: a second description of where things lie."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from satchel.kernels.pages import PAGE

Floats = NDArray[np.float32]
COLUMN = 64


class Pages:
    """f16 [pages, kv heads, K and V], full of finite garbage, as former sequences leave it."""

    def __init__(self, n_pages: int, n_kv: int, head_dim: int) -> None:
        self.head_dim = head_dim
        shape = (n_pages, n_kv, 2 * head_dim * PAGE)
        garbage = np.random.default_rng(9).standard_normal(shape) * 300
        self.halves = garbage.astype(np.float16)

    def keys(self, page: int) -> NDArray[np.float16]:
        """A view [kv heads, head_dim, slots]."""
        n_kv = self.halves.shape[1]
        return self.halves[page, :, : self.head_dim * PAGE].reshape(n_kv, self.head_dim, PAGE)

    def values(self, page: int, dim: int) -> NDArray[np.float16]:
        """A view [kv heads, slots, dims] of the column of 64 dims that begins at dim."""
        width = min(COLUMN, self.head_dim - dim)
        begin = (self.head_dim + dim) * PAGE
        column = self.halves[page, :, begin : begin + width * PAGE]
        return column.reshape(-1, PAGE, width)

    def put(self, table: NDArray[np.int32], position: int, k: Floats, v: Floats) -> None:
        """Write a token's k and v [kv heads, head_dim]."""
        page, slot = table[position // PAGE], position % PAGE
        self.keys(page)[:, :, slot] = k
        for dim in range(0, self.head_dim, COLUMN):
            self.values(page, dim)[:, slot] = v[:, dim : dim + COLUMN]

    def get(self, table: NDArray[np.int32], position: int) -> tuple[Floats, Floats]:
        """A token's k and v."""
        page, slot = table[position // PAGE], position % PAGE
        columns = [self.values(page, d)[:, slot] for d in range(0, self.head_dim, COLUMN)]
        return self.keys(page)[:, :, slot].astype(np.float32), np.concatenate(columns, 1).astype(
            np.float32
        )
