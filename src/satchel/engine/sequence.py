"""The tokens being extended, and the pages that hold what the model knows of them so far."""

from __future__ import annotations

from collections.abc import Sequence as Items
from itertools import takewhile

from satchel.engine.pages import PagePool, pages_for


class Sequence:
    """A run of tokens, of which the first `n_cached` have their keys and values in `pages`.

    There is no prompt and no answer here, only tokens to catch up with, one or many. A `kept`
    sequence belongs to a session: its pages outlive the request that filled them.
    """

    def __init__(self, pool: PagePool, *, kept: bool = False) -> None:
        self.pool = pool
        self.kept = kept
        self.tokens: list[int] = []
        self.n_cached = 0
        self.pages: list[int] = []

    @property
    def n_pending(self) -> int:
        """How many tokens the model has yet to see."""
        return len(self.tokens) - self.n_cached

    def missing_pages(self, n_tokens: int) -> int:
        """How many pages more it takes to cache the first `n_tokens` tokens."""
        return max(0, pages_for(n_tokens) - len(self.pages))

    def grow(self, n_tokens: int) -> None:
        """Takes pages for the first `n_tokens`; raises MemoryLimitError when none is left."""
        for _ in range(self.missing_pages(n_tokens)):
            self.pages.append(self.pool.take())

    def advance(self, n_tokens: int) -> None:
        """The next `n_tokens` tokens are cached now."""
        self.n_cached += n_tokens
        assert self.n_cached <= len(self.tokens), "more cached than there is"
        assert pages_for(self.n_cached) <= len(self.pages), "cached outside the pages"

    def restart(self, tokens: Items[int]) -> None:
        """Becomes `tokens`, and keeps what is cached of their beginning.

        The last token is always left to compute, for it is its logits that tell what follows.
        """
        pairs = zip(self.tokens, tokens[:-1], strict=False)
        self.roll_back(sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)))
        self.tokens = list(tokens)

    def roll_back(self, n_cached: int) -> None:
        """Forgets what is cached beyond the first `n_cached` tokens; frees pages left empty."""
        self.n_cached = min(self.n_cached, n_cached)
        while len(self.pages) > pages_for(self.n_cached):
            self.pool.release(self.pages.pop())
