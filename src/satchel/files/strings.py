"""Where the strings of an array lie. They follow each other, each after its 64-bit length.

To know where the array ends, its strings must be walked: 262,144 steps in a large vocabulary,
too slow one by one in Python. But nearly all strings are shorter than 256 bytes, and the length of
such a string ends in seven zero bytes, which hardly occur elsewhere. So numpy guesses all starts
of a stretch at once, and then confirms them: when the first guess is a start, and each guess is
where the string before it ends, all are starts. Where that fails (a long string, zeros inside a
text) some strings are walked one by one before the next guess. Any file is read rightly; ordinary
ones are read fast.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from satchel.base.errors import FileFormatError

STRETCH = 1 << 16  # bytes guessed at a time: small arrays are cheap to make, and stay in the cache
HOPS = 64  # strings walked one by one after a failed guess

_LENGTH = struct.Struct("<Q")


def string_starts(data: NDArray[np.uint8], position: int, count: int) -> NDArray[np.int64]:
    """The places [count + 1] of each string's length, and of the first byte after the last.

    data holds bytes, the array's first length at `position`. Memory is taken for strings that are
    there, whatever the count claims. Raises FileFormatError when the strings end after the data.
    """
    if count > (len(data) - position) // 8:
        raise _beyond(count, position, len(data))
    found: list[NDArray[np.int64]] = []
    left = count
    while left:
        starts, position = _hop(data, position, min(left, HOPS), count)
        found.append(starts)
        left -= len(starts)
        confirmed = HOPS
        while left and confirmed >= HOPS:
            starts, position = _leap(data, position, left)
            found.append(starts)
            confirmed = len(starts)
            left -= confirmed
    if position > len(data):
        raise _beyond(count, position, len(data))
    return np.concatenate([*found, np.array([position], np.int64)])


def _hop(
    data: NDArray[np.uint8], position: int, n: int, count: int
) -> tuple[NDArray[np.int64], int]:
    """The starts of the next n strings, and where they end: one by one, checking each."""
    starts = np.empty(n, np.int64)
    view = data.data
    for i in range(n):
        if position + 8 > len(view):
            raise _beyond(count, position, len(view))
        starts[i] = position
        position += 8 + _LENGTH.unpack_from(view, position)[0]
    return starts, position


def _leap(data: NDArray[np.uint8], position: int, n: int) -> tuple[NDArray[np.int64], int]:
    """The starts of up to n strings of the next stretch, as far as confirmed, and their end."""
    stretch = data[position : position + STRETCH]
    guesses = np.flatnonzero(_seven_zeros(stretch == 0))[: n + 1]
    if not guesses.size or guesses[0] != 0:
        return guesses[:0].astype(np.int64), position
    ends = guesses + stretch[guesses] + 8
    wrong = np.flatnonzero(ends[:-1] != guesses[1:])
    confirmed = min(n, int(wrong[0]) + 1 if wrong.size else len(guesses))
    return guesses[:confirmed] + position, position + int(ends[confirmed - 1])


def _seven_zeros(zero: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether bytes i + 1 .. i + 7 are all zero, for every i where there are so many."""
    two = zero[1:-1] & zero[2:]
    four = two[:-2] & two[2:]
    return four[:-3] & four[3:]


def _beyond(count: int, position: int, size: int) -> FileFormatError:
    return FileFormatError(
        f"an array of {count} strings goes on at byte {position}, but the file ends at byte {size};"
        " it is cut short or damaged, fetch it again"
    )
