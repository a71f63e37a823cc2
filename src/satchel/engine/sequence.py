"""The tokens being extended, and the pages that hold what the model knows of them so far."""

from __future__ import annotations

from collections.abc import Sequence as Items

from satchel.engine.pages import PagePool, Pages, pages_for
from satchel.runtime.batch import PAGE


class Sequence:
    """A run of tokens, of which the first `n_cached` have their keys and values in `pages`, those
    of each cache group.

    There is no prompt and no answer here, only tokens to catch up with, one or many.
    """

    def __init__(self, pools: Items[PagePool]) -> None:
        self.tokens: list[int] = []
        self.n_cached = 0
        self.pages = tuple(Pages(pool) for pool in pools)

    @property
    def n_pending(self) -> int:
        """How many tokens the model has yet to see."""
        return len(self.tokens) - self.n_cached

    def lacking(self, n_tokens: int) -> int | None:
        """A group that has too few free pages for its first `n_tokens` tokens; None: all fit."""
        for group, pages in enumerate(self.pages):
            if pages.missing(n_tokens) > pages.pool.n_free:
                return group
        return None

    def grow(self, n_tokens: int) -> None:
        """Takes pages for the first `n_tokens`; raises MemoryLimitError when none is left."""
        for pages in self.pages:
            pages.grow(n_tokens)

    def advance(self, n_tokens: int) -> None:
        """The next `n_tokens` tokens are cached now."""
        self.n_cached += n_tokens
        assert self.n_cached <= len(self.tokens), "more cached than there is"
        for pages in self.pages:
            assert self.n_cached <= PAGE * pages.end, "cached outside the pages"

    def slide(self) -> None:
        """Lets go of the pages that no token to come will see."""
        for pages in self.pages:
            pages.slide(self.n_cached)

    def clear(self) -> None:
        """Lets go of all pages: nothing is cached any more."""
        self.n_cached = 0
        for pages in self.pages:
            pages.clear()

    def page_ids(self) -> list[list[int]]:
        """Of each group, the pages that are held."""
        return [pages.ids for pages in self.pages]

    def check(self) -> None:
        """Asserts that the pages fit the tokens: none missing, none that no one needs."""
        for pages in self.pages:
            first = pages.pool.group.first_seen(self.n_cached) // PAGE
            assert pages.first == first, "not where the window begins"
            assert pages.end == max(first, pages_for(self.n_cached)), "pages without tokens"
