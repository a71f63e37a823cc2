"""How close two sets of logits are, and the reference to hold them against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel.archs import trace
from satchel.files.checkpoint import Checkpoint
from satchel.graph import evaluate

Logits = NDArray[np.floating[Any]]
TOPICS = ("execmodel", "with", "exceptions", "naming", "objects")
ROWS_AT_ONCE = 4
"""Rows compared at a time: 262,144 logits a row in float64 are 2 MB, and caches are small."""


@dataclass(frozen=True)
class Agreement:
    """Over n rows of logits: KL divergences in nats, the share of rows with the same best token.

    `kl_error` is the standard error of `mean_kl`.
    """

    n: int
    mean_kl: float
    kl_error: float
    median_kl: float
    max_kl: float
    top1: float

    def __str__(self) -> str:
        return (
            f"{self.n} tokens: mean KL {self.mean_kl:.3e} +- {self.kl_error:.1e}, median "
            f"{self.median_kl:.3e}, max {self.max_kl:.3e}, same top-1 {self.top1:.2%}"
        )


def agreement(reference: Logits, other: Logits) -> Agreement:
    """Compare logits (or log-probabilities) of two models, row by row: KL(reference || other).

    Both [n, vocab]; computed in float64. Raises ValueError if the shapes differ.
    """
    return summary(*divergences(reference, other))


def divergences(reference: Logits, other: Logits) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """KL(reference || other) of each row, and whether its best tokens are the same."""
    if reference.shape != other.shape:
        raise ValueError(f"logits of shapes {reference.shape} and {other.shape} can't be compared")
    kl = np.empty(len(reference))
    same = np.empty(len(reference), bool)
    for start in range(0, len(kl), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        x, y = (
            z.astype(np.float64) - z.max(axis=-1, keepdims=True)
            for z in (reference[rows], other[rows])
        )
        weights = np.exp(x)
        total = weights.sum(axis=-1)
        further = np.log(np.exp(y).sum(axis=-1) / total)
        kl[rows] = np.einsum("nv,nv->n", weights, x - y) / total + further
        same[rows] = x.argmax(axis=-1) == y.argmax(axis=-1)
    return kl, same


def summary(kl: NDArray[np.float64], same: NDArray[np.bool_]) -> Agreement:
    """What rows come to."""
    return Agreement(
        n=len(kl),
        mean_kl=float(kl.mean()),
        kl_error=float(kl.std() / np.sqrt(len(kl))),
        median_kl=float(np.median(kl)),
        max_kl=float(kl.max()),
        top1=float(same.mean()),
    )


def sample_text() -> str:
    """Some thousand tokens of real text that every Python brings: its own documentation."""
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in TOPICS)


def perplexity(logits: Logits, tokens: Sequence[int]) -> float:
    """exp of the mean surprise at each next token; logits[i] foretells tokens[i + 1]."""
    surprise = 0.0
    for start in range(0, len(tokens) - 1, ROWS_AT_ONCE):
        end = min(start + ROWS_AT_ONCE, len(tokens) - 1)
        scores = log_softmax(logits[start:end])
        surprise -= float(scores[np.arange(end - start), tokens[start + 1 : end + 1]].sum())
    return float(np.exp(surprise / (len(tokens) - 1)))


def log_softmax(logits: Logits) -> NDArray[np.float64]:
    """Log-probabilities over the last axis, in float64."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


class Decoded:
    """A checkpoint's weights, decoded to float32 when they are asked for, whole or by rows."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint

    def __call__(self, name: str) -> NDArray[np.float32]:
        """The whole weight, in numpy's shape."""
        info = self._checkpoint.tensor(name)
        return info.format.decode(self._checkpoint.raw(name)).reshape(info.shape)

    def rows(self, name: str, rows: NDArray[np.integer[Any]]) -> NDArray[np.float32]:
        """Some rows, float32 [len(rows), row length]."""
        return self._checkpoint.tensor(name).format.decode(self._checkpoint.raw(name)[rows])


def reference_logits(
    checkpoint: Checkpoint, tokens: Sequence[int], wanted: Sequence[int] | None = None
) -> NDArray[np.float64]:
    """Logits [wanted, vocab] of one sequence by the graph's meaning, all in float64.

    wanted: indices into tokens, all by default. Raises what `archs.trace` raises.
    """
    return evaluate(trace(checkpoint), Decoded(checkpoint), tokens, np.float64, wanted)
