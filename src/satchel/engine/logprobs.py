"""How likely the model itself held a token to be, whatever was chosen and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from satchel.engine.rows import largest

if TYPE_CHECKING:
    from satchel.engine.rows import Row


@dataclass(frozen=True)
class TokenLogprob:
    """A chosen token, and the natural logarithm of its probability.

    Of the model's own distribution: before bias, processors, penalties, constraint, temperature and
    filters. `top` are the likeliest tokens with theirs, the likeliest first; the chosen one may or
    may not be among them.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def token_logprob(logits: Row, maxima: Row, token: int, n_top: int) -> TokenLogprob:
    """Of a token, and of the `n_top` likeliest, given its row of logits [vocab] and the maxima of
    their strips.
    """
    highest = float(maxima.max())
    total = float(np.exp(logits - np.float32(highest)).sum(dtype=np.float64))
    zero = highest + math.log(total)  # the logit whose logarithm of probability is 0
    top: tuple[tuple[int, float], ...] = ()
    if n_top:
        ids, tops = largest(logits, maxima, min(n_top, len(logits)))
        top = tuple((i, x - zero) for i, x in zip(ids.tolist(), tops.tolist(), strict=True))
    return TokenLogprob(token, float(logits[token]) - zero, top)
