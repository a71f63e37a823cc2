"""How long a step may be, so that answers that are under way keep coming.

A step in which prompts are caught up with makes those wait that only want their next token. Their
time is bounded by the number of prompt tokens in such a step, by what the last ones took each.
"""

from __future__ import annotations

STEP_S = 0.1  # what a step may take that answers wait for: they still come faster than one reads
LEAST = 16  # prompt tokens of a step: with fewer, the weights are read for too little
_NEW = 0.5  # how much the last step counts


class Pace:
    """Measures steps; says how many prompt tokens the next one may have beside answers."""

    def __init__(self, most: int) -> None:
        """`most` tokens fit into a step."""
        self.most = most
        self.token_s: float | None = None  # the time of a prompt's token in a step

    @property
    def limit(self) -> int:
        """The most prompt tokens in a step that answers wait for."""
        if not self.token_s:
            return self.most
        n_tokens = int(STEP_S / self.token_s) // LEAST * LEAST
        return min(self.most, max(LEAST, n_tokens))

    def note(self, n_tokens: int, seconds: float) -> None:
        """A step with `n_tokens` of prompts took so long."""
        if n_tokens < LEAST or seconds <= 0:
            return  # nothing is learnt of prompts from a step that had none
        found = seconds / n_tokens
        self.token_s = (
            found if self.token_s is None else self.token_s + _NEW * (found - self.token_s)
        )

    def seconds(self, n_tokens: int) -> float:
        """What it takes to compute so many tokens of a prompt; 0 when nothing was measured."""
        return n_tokens * (self.token_s or 0.0)
