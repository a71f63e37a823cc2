"""The step after one that brought each request a token: the same once more, a position further.

Most steps are such ones. To plan them anew takes long in a processor whose caches hold nothing of
ours: the model's run has just filled them with its weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from satchel.engine.share import Share
from satchel.runtime.batch import PAGE, Batch

if TYPE_CHECKING:
    from satchel.engine.pages import Pages
    from satchel.engine.request import Request
    from satchel.engine.sequence import Sequence


class Again:
    """Remembers the last step, and repeats it for as long as nothing but tokens has changed."""

    def __init__(self) -> None:
        self.shares: list[Share] = []
        self.batch: Batch | None = None
        self.pages: list[list[tuple[Pages, int, list[int]]]] = []

    def note(self, shares: list[Share], batch: Batch) -> None:
        """A step was planned, from the ground up."""
        if all(s.n_tokens == s.n_wanted == 1 and not s.n_embedded for s in shares):
            self.shares, self.batch = shares, batch
            self.pages = [_held(share.request.sequence) for share in shares]
        else:
            self.forget()

    def forget(self) -> None:
        """The next step is not like the last one."""
        self.shares, self.batch, self.pages = [], None, []

    def next_step(self, running: list[Request]) -> tuple[list[Share], Batch] | None:
        """The same for those that run now, each a token further; None where that is not all: when
        they are others, or one of them begins a page.
        """
        last = self.batch
        if last is None or len(running) != len(self.shares):
            return None
        shares: list[Share] = []
        for request, share, pages in zip(running, self.shares, self.pages, strict=True):
            sequence, at = request.sequence, share.end
            goes_on = request is share.request and sequence.n_cached == at == request.first_wanted
            if not goes_on or len(sequence.tokens) != at + 1 or sequence.n_slots % PAGE == 0:
                return None
            if any(p.first != first or p.ids != ids for p, first, ids in pages):
                return None
            shares.append(Share(request, at, at + 1, at, share.rows, at + 1))
        tokens = [share.request.sequence.tokens[share.begin] for share in shares]
        positions = [share.request.sequence.n_slots for share in shares]
        numbers = np.array((tokens, positions), dtype=np.int32)
        batch = Batch(
            tokens=numbers[0],
            positions=numbers[1],
            sequences=last.sequences,
            tables=last.tables,
            wanted=last.wanted,
        )
        self.shares, self.batch = shares, batch
        return shares, batch


def _held(sequence: Sequence) -> list[tuple[Pages, int, list[int]]]:
    """The pages of each group, and what a table has of them."""
    return [(pages, pages.first, pages.ids.copy()) for pages in sequence.pages]
