"""The memory of a cache group: what its pages hold, taken out and put back as a whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from satchel.base.errors import CacheError
from satchel.runtime.batch import CacheGroup
from satchel.runtime.memory import Memory


class GroupMemory:
    """One buffer for each layer, and in each all pages one after another."""

    def __init__(self, window: int | None, n_pages: int, buffers: Sequence[Memory]) -> None:
        self._buffers = buffers
        self._layers = [
            memory.array(np.uint8, memory.n_bytes).reshape(n_pages, -1) for memory in buffers
        ]
        n_bytes = sum(layer.shape[1] for layer in self._layers)
        self.group = CacheGroup(window, n_pages, n_bytes)

    def discard(self, pages: Sequence[int]) -> None:
        """See runtime.batch.Model.discard_pages."""
        for memory, layer in zip(self._buffers, self._layers, strict=True):
            n_bytes = layer.shape[1]
            for first, n in runs(pages):
                memory.discard(first * n_bytes, n * n_bytes)

    def copy(self, source: int, target: int) -> None:
        """See runtime.batch.Model.copy_page."""
        for layer in self._layers:
            layer[target] = layer[source]

    def read(self, page: int) -> bytes:
        """See runtime.batch.Model.read_page."""
        return b"".join(layer[page].tobytes() for layer in self._layers)

    def write(self, page: int, data: bytes) -> None:
        """See runtime.batch.Model.write_page. Raises CacheError for data of another length."""
        if len(data) != self.group.page_bytes:
            raise CacheError(f"{len(data)} bytes are no page of {self.group.page_bytes}")
        whole, at = np.frombuffer(data, np.uint8), 0
        for layer in self._layers:
            layer[page] = whole[at : at + layer.shape[1]]
            at += layer.shape[1]


def runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbours together: the first of each run, and how many they are."""
    first = n = 0
    for page in sorted(pages):
        if n and page == first + n:
            n += 1
            continue
        if n:
            yield first, n
        first, n = page, 1
    if n:
        yield first, n
