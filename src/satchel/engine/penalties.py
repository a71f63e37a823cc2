"""What makes repetition less likely: penalties of recent tokens, and of going on as before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from satchel.engine.params import SamplingParams

if TYPE_CHECKING:
    from satchel.engine.rows import Ids, Row

LARGEST_LOG = math.log(float(np.finfo(np.float32).max))


def last(history: Sequence[int], n: int) -> Sequence[int]:
    """The last `n` tokens; -1: all."""
    return history[-n:] if n > 0 else history if n < 0 else ()


def penalize_repeats(row: Row, recent: Sequence[int], params: SamplingParams) -> Ids:
    """Changes the logits [vocab] of recent tokens; gives their ids.

    The penalty for repeating is Keskar and others', 2019, arXiv:1909.05858, but for logits below 0,
    which dividing would raise.
    """
    counts = Counter(recent)
    ids = np.array(list(counts), dtype=np.intp)
    times = np.array(list(counts.values()), dtype=np.float32)
    seen = row[ids]
    by = np.float32(params.repeat_penalty)
    seen = np.where(seen > 0, seen / by, seen * by)
    row[ids] = seen - times * params.frequency_penalty - params.presence_penalty
    return ids


class Dry:
    """Penalizes tokens by how long a repetition they would go on with ("don't repeat yourself").

    By its author p-e-w: github.com/oobabooga/text-generation-webui, pull request 5677.
    """

    def __init__(self, params: SamplingParams, piece: Callable[[int], bytes]) -> None:
        """`piece` gives a token's text, in which breakers are looked for."""
        self.params = params
        self.piece = piece
        self.breakers = [text.encode() for text in params.dry_sequence_breakers]
        self.longest = 0  # past this exponent a float32 overflows
        if params.dry_base > 1:
            self.longest = int(LARGEST_LOG / math.log(params.dry_base))

    def penalize(self, row: Row, history: Sequence[int]) -> Ids:
        """Changes logits [vocab] of tokens that would go on with a repetition; gives their ids."""
        p = self.params
        penalties: dict[int, float] = {}
        for token, length in self.repetitions(last(history, p.dry_penalty_last_n)).items():
            if not any(breaker in self.piece(token) for breaker in self.breakers):
                beyond = length - p.dry_allowed_length
                beyond = min(beyond, self.longest) if self.longest else beyond
                penalties[token] = p.dry_multiplier * p.dry_base**beyond
        ids = np.array(list(penalties), dtype=np.intp)
        lower = row[ids] - np.array(list(penalties.values()), dtype=np.float64)
        row[ids] = np.where(row[ids] > -math.inf, lower.clip(np.finfo(np.float32).min), -math.inf)
        return ids

    def repetitions(self, recent: Sequence[int]) -> dict[int, int]:
        """The tokens that once followed what the recent ones end with, and how long that was, at
        the longest; none shorter than is allowed.
        """
        allowed = self.params.dry_allowed_length
        limit = self._since_breaker(recent)
        found: dict[int, int] = {}
        if len(recent) <= allowed or limit < allowed:
            return found
        backward = recent[::-1]
        for back, length in enumerate(common_lengths(backward)):
            if back and (length := min(length, limit)) >= allowed:
                token = backward[back - 1]
                found[token] = max(length, found.get(token, 0))
        return found

    def _since_breaker(self, recent: Sequence[int]) -> int:
        """How many tokens there are after the one in which the last breaker ends."""
        for end in range(len(recent), 0, -1):
            if any(self._ends(breaker, recent[:end]) for breaker in self.breakers):
                return len(recent) - end
        return len(recent)

    def _ends(self, breaker: bytes, tokens: Sequence[int]) -> bool:
        """Whether a breaker ends in the last one of some tokens."""
        before, place, room = b"", len(tokens) - 2, len(breaker) - 1
        while place >= 0 and len(before) < room:
            before = self.piece(tokens[place]) + before
            place -= 1
        return breaker in before[len(before) - min(room, len(before)) :] + self.piece(tokens[-1])


def common_lengths(items: Sequence[int]) -> list[int]:
    """For each place, how many items from there on are the same as those at the beginning.

    Gusfield's Z algorithm ("Algorithms on Strings, Trees and Sequences", 1997, 1.3), in linear
    time: within the stretch that was last found to repeat, earlier answers are looked up.
    """
    n = len(items)
    lengths = [n] * n
    begin = end = (
        0  # of the stretch items[begin:end] that equals the beginning and reaches furthest
    )
    for i in range(1, n):
        length = min(lengths[i - begin], end - i) if i < end else 0
        while i + length < n and items[length] == items[i + length]:
            length += 1
        lengths[i] = length
        if i + length > end:
            begin, end = i, i + length
    return lengths
