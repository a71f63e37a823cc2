"""The pages of the KV cache: which are free, and how many sequences hold each of the others.

Only ids are counted here; the memory behind them is the model's. Pages that were used before are
handed out first, so that no more memory is ever touched than was needed at one time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from satchel.base.errors import MemoryLimitError
from satchel.runtime.batch import PAGE


class PagePool:
    """Counts who holds each of `n_pages` pages. A page that two sequences hold is read only."""

    def __init__(self, n_pages: int) -> None:
        self.n_pages = n_pages
        self.holders = [0] * n_pages
        self.free = list(range(n_pages - 1, -1, -1))  # a stack: page 0 on top, then the last freed

    @property
    def n_free(self) -> int:
        """How many pages no one holds."""
        return len(self.free)

    def take(self) -> int:
        """A free page, now held once; raises MemoryLimitError when there is none."""
        if not self.free:
            raise MemoryLimitError(f"all {self.n_pages} pages of the KV cache are in use")
        page = self.free.pop()
        self.holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more sequence holds a page that is in use."""
        assert self.holders[page] > 0, f"page {page} is free"
        self.holders[page] += 1

    def release(self, page: int) -> None:
        """One sequence less holds a page; the last one frees it."""
        assert self.holders[page] > 0, f"page {page} is free"
        self.holders[page] -= 1
        if not self.holders[page]:
            self.free.append(page)

    def check(self, tables: Iterable[Sequence[int]]) -> None:
        """Asserts that `tables`, the pages of all sequences, explain the state of every page."""
        held = Counter[int]()
        for table in tables:
            assert len(set(table)) == len(table), f"a page twice in one sequence: {table}"
            held.update(table)
        for page, count in enumerate(self.holders):
            assert count == held[page], f"page {page} counts {count} holders, {held[page]} hold it"
        assert held.keys() <= set(range(self.n_pages)), f"no such page: {held.keys()}"
        assert len(set(self.free)) == len(self.free), "a page is free twice"
        assert set(self.free) == {p for p, n in enumerate(self.holders) if not n}, "a page is lost"


def pages_for(n_tokens: int) -> int:
    """How many pages hold `n_tokens` tokens."""
    return -(-n_tokens // PAGE)
