"""The tokens being extended, and the pages that hold what the model knows of them so far."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from satchel.engine.pages import PagePool, Pages, pages_for
from satchel.runtime.batch import PAGE

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from satchel.runtime.batch import Moves


class Sequence:
    """A run of tokens, of which the first `n_cached` have their keys and values in `pages`, those
    of each cache group.

    There is no prompt and no answer here, only tokens to catch up with, one or many. Of those that
    were cached, `n_dropped` may be forgotten; the others moved up.
    """

    def __init__(self, pools: Items[PagePool]) -> None:
        self.tokens: list[int] = []
        self.n_cached = 0
        self.n_dropped = 0
        self.pages = tuple(Pages(pool) for pool in pools)

    @property
    def n_pending(self) -> int:
        """How many tokens the model has yet to see."""
        return len(self.tokens) - self.n_cached

    @property
    def n_slots(self) -> int:
        """How many of the cached tokens are still there; the next token's position."""
        return self.n_cached - self.n_dropped

    def lacking(self, n_tokens: int) -> int | None:
        """A group that has too few free pages for its first `n_tokens` tokens; None: all fit."""
        for group, pages in enumerate(self.pages):
            if pages.missing(n_tokens - self.n_dropped) > pages.pool.n_free:
                return group
        return None

    def grow(self, n_tokens: int) -> None:
        """Takes pages for the first `n_tokens`; raises MemoryLimitError when none is left."""
        for pages in self.pages:
            pages.grow(n_tokens - self.n_dropped)

    def advance(self, n_tokens: int) -> None:
        """The next `n_tokens` tokens are cached now."""
        self.n_cached += n_tokens
        assert self.n_cached <= len(self.tokens), "more cached than there is"
        for pages in self.pages:
            assert self.n_slots <= PAGE * pages.end, "cached outside the pages"

    def slide(self) -> None:
        """Lets go of the pages that no token to come will see."""
        for pages in self.pages:
            pages.slide(self.n_slots)

    def lacking_to_move(self, n_kept: int) -> int | None:
        """A group that has too few free pages to move so many tokens to; None: all have them."""
        for group, pages in enumerate(self.pages):
            if pages.count_from_window(n_kept) > pages.pool.n_free:
                return group
        return None

    def forget(self, kept: npt.NDArray[np.int64]) -> list[Moves]:
        """Forgets all tokens but those at these places, ascending; what to move for that."""
        self.n_dropped += self.n_slots - len(kept)
        return [pages.forget(kept) for pages in self.pages]

    def clear(self) -> None:
        """Lets go of all pages: nothing is cached any more."""
        self.n_cached = self.n_dropped = 0
        for pages in self.pages:
            pages.clear()

    def page_ids(self) -> list[list[int]]:
        """Of each group, the pages that are held."""
        return [pages.ids for pages in self.pages]

    def check(self) -> None:
        """Asserts that the pages fit the tokens: none missing, none that no one needs."""
        for pages in self.pages:
            first = pages.pool.group.first_seen(self.n_slots) // PAGE
            assert pages.first == first, "not where the window begins"
            assert pages.end == max(first, pages_for(self.n_slots)), "pages without tokens"
