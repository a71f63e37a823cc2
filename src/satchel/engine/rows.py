"""Rows of logits: what is large in them, found by the maxima of their strips."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from satchel.runtime.batch import STRIP

if TYPE_CHECKING:
    import numpy.typing as npt

    Row: TypeAlias = npt.NDArray[np.float32]
    Ids: TypeAlias = npt.NDArray[np.intp]
    Rows: TypeAlias = npt.NDArray[np.float32]
    Ranks: TypeAlias = npt.NDArray[np.int32]

WITHIN = np.arange(STRIP)  # the places within a strip


class Logits:
    """The logits of a step's wanted positions, and what was found in them: see
    runtime.batch.Model.
    """

    def __init__(self, rows: Rows, maxima: Rows, ranked: tuple[Ranks, Rows]) -> None:
        self.rows = rows  # [m, vocab]
        self.maxima = maxima  # [m, strips]
        self.ranked = ranked  # [m, RANKED] both
        # the same, flat, for who reads few of them and spares numpy's code the way into the caches
        self.ids, self.greatest = (array.reshape(-1).data for array in ranked)


def strip_maxima(row: Row) -> Row:
    """The greatest of each STRIP neighbours; NaN where one is."""
    return np.maximum.reduceat(row, np.arange(0, len(row), STRIP))


def updated_maxima(maxima: Row, row: Row, changed: Ids) -> Row:
    """The maxima of a row of which the changed ids are other now than when they were taken."""
    maxima, strips = maxima.copy(), changed // STRIP
    inside = np.minimum(strips[:, None] * STRIP + WITHIN, len(row) - 1)
    maxima[strips] = row[inside].max(axis=1)
    return maxima


def largest(row: Row, maxima: Row, k: int) -> tuple[Ids, Row]:
    """The ids of the `k` largest entries, and these, from the largest down; of equals the lower id
    first.

    The k-th largest of the strips' maxima is a floor that at least k entries reach, and few more;
    all stand in the strips whose maximum reaches it.
    """
    n_strips = len(maxima)
    if k < n_strips:
        tops = maxima.copy()
        tops.partition(n_strips - k)
        floor = tops[n_strips - k]
        strips = (maxima >= floor).nonzero()[0]
        near = in_strips(row)[strips].ravel()
    else:
        tops = row.copy()
        tops.partition(len(row) - k)
        floor, strips, near = tops[len(row) - k], np.arange(n_strips), row
    high = (near >= floor).nonzero()[0]
    values = near[high]
    order = (-values).argsort(kind="stable")[:k]
    at, within = np.divmod(high[order], STRIP)
    return strips[at] * STRIP + within, values[order]


def in_strips(row: Row) -> Row:
    """A row as [n_strips, STRIP], filled up with -inf."""
    if lacking := -len(row) % STRIP:
        row = np.concatenate((row, np.full(lacking, -math.inf, np.float32)))
    return row.reshape(-1, STRIP)
