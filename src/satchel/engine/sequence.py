"""The tokens being extended, and the pages that hold what the model knows of them so far."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import takewhile

from satchel.engine.pages import PagePool, Pages, pages_for
from satchel.runtime.batch import PAGE


class Sequence:
    """A run of tokens, of which the first `n_cached` have their keys and values in `pages`, those
    of each cache group.

    There is no prompt and no answer here, only tokens to catch up with, one or many. A `kept`
    sequence belongs to a session: its pages outlive the request that filled them.
    """

    def __init__(self, pools: Items[PagePool], *, kept: bool = False) -> None:
        self.kept = kept
        self.tokens: list[int] = []
        self.n_cached = 0
        self.pages = tuple(Pages(pool) for pool in pools)

    @property
    def n_pending(self) -> int:
        """How many tokens the model has yet to see."""
        return len(self.tokens) - self.n_cached

    def fits(self, n_tokens: int) -> bool:
        """Whether there are pages for its first `n_tokens` tokens."""
        return all(pages.missing(n_tokens) <= pages.pool.n_free for pages in self.pages)

    def grow(self, n_tokens: int) -> None:
        """Takes pages for the first `n_tokens`; raises MemoryLimitError when none is left."""
        for pages in self.pages:
            pages.grow(n_tokens)

    def advance(self, n_tokens: int) -> None:
        """The next `n_tokens` tokens are cached now, and what they alone have seen is let go."""
        self.n_cached += n_tokens
        assert self.n_cached <= len(self.tokens), "more cached than there is"
        for pages in self.pages:
            assert not pages.missing(self.n_cached), "cached outside the pages"
            pages.slide(self.n_cached)

    def restart(self, tokens: Items[int]) -> None:
        """Becomes `tokens`, and keeps what is cached of their beginning.

        The last token is always left to compute, for it is its logits that tell what follows.
        """
        pairs = zip(self.tokens, tokens[:-1], strict=False)
        self.roll_back(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        self.tokens = list(tokens)

    def check(self) -> None:
        """Asserts that the pages fit the tokens: none missing, none that no one needs."""
        for pages in self.pages:
            first = min(pages.pool.group.first_seen(self.n_cached), self.n_cached) // PAGE
            assert pages.first == (first if self.n_cached else 0), "not where the window begins"
            assert pages.end == max(pages.first, pages_for(self.n_cached)), "pages without tokens"

    def roll_back(self, n_cached: int) -> None:
        """Forgets what is cached beyond the first `n_cached` tokens; frees pages left empty.

        Forgets everything where a window's pages before that place are gone.
        """
        n = min(self.n_cached, n_cached)
        self.n_cached = n if all(pages.reaches(n) for pages in self.pages) else 0
        for pages in self.pages:
            pages.cut(self.n_cached)
