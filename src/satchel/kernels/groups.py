"""How a batch's queries are grouped for attention: what the host reckons at each step. Apart from
the kernels, as a warm start does without their sources.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.runtime.batch import PAGE

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

SEGMENT = 8  # pages; part of the numerics

MAX_SPLIT = 64
"""Tiles of `attend` (groups times kv heads) that may be cut into segments."""


def n_segments(positions: int) -> int:
    return -(-positions // (PAGE * SEGMENT))


def heads_together(n_groups: int, n_kv: int, positions: int, threads: int) -> int:
    """How to share a past: 0: by tiles of one kv head and group each. Else by segments as well, so
    many heads to a tile: all, which read memory on and on, where that leaves enough tiles.
    """
    segments, tiles = n_segments(positions), n_groups * n_kv
    if segments == 1 or tiles >= MAX_SPLIT:
        return 0
    if n_groups * segments >= 2 * threads:
        return n_kv
    return int(threads > 1 and tiles < 4 * threads)


def query_groups(
    sequences: NDArray[np.int32], positions: NDArray[np.int32], group_tokens: int
) -> NDArray[np.int32]:
    """Runs of at most group_tokens tokens, each of one sequence at positions one after another: [n,
    4] of (first token, count, sequence, 0), those that see most first.
    """
    import numpy as np

    n = len(sequences)
    if n == 1:
        return np.array([(0, 1, sequences[0], 0)], np.int32)
    new = np.ones(n, bool)
    new[1:] = (sequences[1:] != sequences[:-1]) | (positions[1:] != positions[:-1] + 1)
    starts: list[int] = np.flatnonzero(new).tolist()
    ends = [*starts[1:], n]
    groups = np.array(
        [
            (first, min(group_tokens, end - first), sequences[start], 0)
            for start, end in zip(starts, ends, strict=True)
            for first in range(start, end, group_tokens)
        ],
        np.int32,
    )
    return groups[np.argsort(-positions[groups[:, 0]], kind="stable")]
