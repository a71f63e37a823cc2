"""The filters: which tokens may be chosen at all. One small function each.

They take candidates and give those that are left. Which of two equally likely tokens stands first
is settled by their ids, so that a filter leaves the same ones everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from satchel.engine.rows import Ids, Ranks, Row

    Floats: TypeAlias = npt.NDArray[np.float64]

ENOUGH = 512  # this many of the likeliest nearly always reach top-p


@dataclass(frozen=True)
class Candidates:
    """Tokens that may be chosen, one at least, and their logits: ids [n] and float64 [n].

    The likeliest first if `is_ranked`, of equals the lower id; else in order of id.
    """

    ids: Ids | Ranks
    logits: Floats
    is_ranked: bool

    @cached_property
    def highest(self) -> float:
        return float(self.logits[0] if self.is_ranked else self.logits.max())

    @cached_property
    def weights(self) -> Floats:
        """In proportion to their probabilities; the likeliest weighs 1."""
        return np.exp(self.logits - self.highest)

    @cached_property
    def total(self) -> float:
        return float(self.weights.sum())

    @property
    def surprise(self) -> Floats:
        """-log p of each, in nats: finite even where p is too small for a number."""
        return math.log(self.total) - (self.logits - self.highest)

    @property
    def entropy(self) -> float:
        """In nats."""
        return float((self.weights * self.surprise).sum()) / self.total

    def keep(self, which: slice | Ids | npt.NDArray[np.bool_]) -> Candidates:
        """Some of them, in the same order."""
        return Candidates(self.ids[which], self.logits[which], self.is_ranked)

    def ranked(self) -> Candidates:
        """The same ones, the likeliest first."""
        if self.is_ranked:
            return self
        order = (-self.logits).argsort(kind="stable")
        return Candidates(self.ids[order], self.logits[order], is_ranked=True)

    def without_banned(self) -> Candidates:
        """Those that are possible at all."""
        possible = self.logits > -math.inf
        return self if possible.all() else self.keep(possible)


def sigma_floor(row: Row, n: float) -> float:
    """The least logit that top-n-sigma keeps, of a row [vocab]: n standard deviations below the
    highest. Tokens that are banned don't count. Tang and others, 2024, arXiv:2411.07641.
    """
    possible = row[row > -math.inf].astype(np.float64)
    return float(possible.max()) - n * float(possible.std())


def typical(c: Candidates, p: float) -> Candidates:
    """Those whose surprise is nearest to the expected one, which is the entropy, until they are
    more than `p` likely together. Meister and others, 2022, arXiv:2202.00666.
    """
    c = c.without_banned().ranked()
    order = np.abs(c.surprise - c.entropy).argsort(kind="stable")
    reached = c.weights[order].cumsum() / c.total
    n = 1 + int(reached.searchsorted(p, side="right"))
    return c.keep(np.sort(order[:n]))


def min_p(c: Candidates, p: float) -> Candidates:
    """Those at least `p` times as likely as the likeliest. Nguyen and others, 2024,
    arXiv:2407.01082.
    """
    likely = c.weights >= p
    return c.keep(slice(int(np.count_nonzero(likely))) if c.is_ranked else likely)


def top_p(c: Candidates, enough: float) -> Candidates:
    """The likeliest, until they weigh `enough`. Holtzman and others, 2019, arXiv:1904.09751."""
    c = c if c.is_ranked else _likeliest(c, enough)
    return c.keep(slice(1 + int(c.weights.cumsum().searchsorted(enough))))


def _likeliest(c: Candidates, enough: float) -> Candidates:
    """The likeliest first, at least so many that they weigh enough: to sort all takes long."""
    if len(c.ids) > ENOUGH:
        floor = np.partition(c.logits, len(c.ids) - ENOUGH)[len(c.ids) - ENOUGH]
        high = c.logits >= floor
        if c.weights[high].sum() >= enough:
            return c.keep(high).ranked()
    return c.ranked()


def xtc(c: Candidates, threshold: float) -> Candidates:
    """Without the likeliest: of the tokens that reach the threshold only the least likely stays.

    "Exclude top choices", by its author p-e-w: github.com/oobabooga/text-generation-webui, pull
    request 6335.
    """
    c = c.without_banned().ranked()
    n_likely = int(np.count_nonzero(c.weights >= threshold * c.total))
    return c.keep(slice(max(0, n_likely - 1), None))


def dynamic_temperature(c: Candidates, temperature: float, span: float, exponent: float) -> float:
    """From `temperature` - `span` where the model is sure to + `span` where all candidates are
    equally likely, by the part of the highest possible entropy that theirs is.

    Entropy-based dynamic temperature, by kalomaze: github.com/ggml-org/llama.cpp, pull request
    4972.
    """
    c = c.without_banned()
    if len(c.ids) == 1:
        return temperature
    coldest = max(0.0, temperature - span)
    part = min(1.0, max(0.0, c.entropy / math.log(len(c.ids))))
    return coldest + (temperature + span - coldest) * part**exponent


def surprising(c: Candidates, most_bits: float) -> Candidates:
    """Those whose surprise is at most so many bits; the likeliest at least."""
    likely = c.surprise <= most_bits * math.log(2)
    return c.keep(likely) if likely.any() else c.keep(np.array([int(c.logits.argmax())]))
