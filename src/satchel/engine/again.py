"""The step after one that brought each request a token: the same once more, a position further.

Most steps are such ones. To plan them anew takes long in a processor whose caches hold nothing of
ours: the model's run has just filled them with its weights. So what runs here is short, and makes
little that is new.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from satchel.engine.share import Share
from satchel.runtime.batch import PAGE

if TYPE_CHECKING:
    from satchel.engine.sequence import Sequence


class Again:
    """Remembers the last step, and how often it can be repeated."""

    def __init__(self) -> None:
        self.shares: list[Share] = []  # of the step that was planned; all others are like it
        self.n_left = 0  # how many more there can be

    def note(self, shares: list[Share], most_slots: int) -> None:
        """A step was planned, from the ground up."""
        self.n_left = 0
        if all(s.n_tokens == s.n_wanted == 1 and not s.n_embedded for s in shares):
            self.shares = shares
            self.n_left = min(_n_alike(share.request.sequence, most_slots) for share in shares)

    def forget(self) -> None:
        """The next step is not like the last one."""
        self.n_left = 0

    def next_tokens(self) -> list[int]:
        """The tokens of the next step, one for each share; none where it has to be planned."""
        tokens: list[int] = []
        if self.n_left:
            for share in self.shares:
                sequence = share.request.sequence
                if len(sequence.tokens) != sequence.n_cached + 1:
                    return []
                tokens.append(sequence.tokens[-1])
            self.n_left -= 1
        return tokens


def _n_alike(sequence: Sequence, most_slots: int) -> int:
    """How many tokens after the next one find the same pages: until they fill one, a window lets
    go of one, or something has to be forgotten.
    """
    n_slots = sequence.n_slots + 1
    n_alike = min(-n_slots % PAGE, most_slots - n_slots)
    for pages in sequence.pages:
        if pages.pool.group.window is not None:
            n_alike = min(n_alike, (pages.pool.group.window - 1 - n_slots) % PAGE)
    return n_alike
