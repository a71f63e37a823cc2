"""Pages are copied, taken out and put back whole, in all layers of their group."""

from __future__ import annotations

import mmap
import sys

import numpy as np
import pytest

from satchel.base.errors import CacheError
from satchel.runtime.batch import CacheGroup, pages_within
from satchel.runtime.kv import GroupMemory, runs
from satchel.runtime.memory import Memory


def memory_of(*layers: int) -> tuple[GroupMemory, list[np.ndarray]]:
    """Three pages in layers of so many bytes a page, each byte another."""
    memories = [Memory(3 * n) for n in layers]
    arrays = [memory.array(np.uint8, memory.n_bytes).reshape(3, -1) for memory in memories]
    for i, array in enumerate(arrays):
        array[:] = np.arange(array.size).reshape(array.shape) + 100 * i
    return GroupMemory(7, 3, memories), arrays


def test_a_page_of_all_layers() -> None:
    memory, (first, second) = memory_of(4, 2)
    assert memory.group == CacheGroup(7, 3, 6)
    assert memory.read(1) == bytes([4, 5, 6, 7, 102, 103])
    memory.copy(1, 2)
    assert memory.read(2) == memory.read(1)
    memory.write(0, bytes(range(6)))
    assert first.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7], [4, 5, 6, 7]]
    assert second.tolist() == [[4, 5], [102, 103], [102, 103]]


def test_data_of_another_length() -> None:
    memory, _ = memory_of(4, 2)
    before = memory.read(0)
    with pytest.raises(CacheError, match="5 bytes are no page of 6"):
        memory.write(0, bytes(5))
    assert memory.read(0) == before


def test_pages_that_positions_lie_in() -> None:
    for n in range(1, 300):
        most = max((first + n - 1) // 64 - first // 64 + 1 for first in range(64))
        assert pages_within(n) == most


def test_pages_are_discarded_in_all_layers() -> None:
    size = mmap.PAGESIZE
    memory, layers = memory_of(size, 2 * size)
    kept = memory.read(1)
    memory.discard([2, 0])
    assert memory.read(1) == kept
    if sys.platform == "linux":
        assert not any(layer[[0, 2]].any() for layer in layers)


def test_runs_of_neighbours() -> None:
    assert list(runs([5, 1, 2, 9, 3])) == [(1, 3), (5, 1), (9, 1)]
    assert list(runs([])) == []
