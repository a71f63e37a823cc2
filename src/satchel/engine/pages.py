"""The pages of the KV cache: which are free, and how many sequences hold each of the others.

Only ids are counted here; the memory behind them is the model's. Pages that were used before are
handed out first, so that no more memory is ever touched than was needed at one time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from satchel.base.errors import MemoryLimitError
from satchel.runtime.batch import NO_PAGE, PAGE, CacheGroup, pages_within


class PagePool:
    """Counts who holds each page of a cache group. A page that two sequences hold is read only."""

    def __init__(self, group: CacheGroup) -> None:
        self.group = group
        self.n_pages = n_pages = group.n_pages
        self.holders = [0] * n_pages
        self.free = list(range(n_pages - 1, -1, -1))  # a stack: page 0 on top, then the last freed

    def most(self, n_tokens: int, chunk: int) -> int:
        """The pages that a sequence of so many tokens holds at most, `chunk` of them in a step."""
        whole, window = pages_for(n_tokens), self.group.window
        return whole if window is None else min(whole, pages_within(window - 1 + chunk))

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


class Pages:
    """The pages of one sequence in one cache group: those of all that its window still reaches."""

    def __init__(self, pool: PagePool) -> None:
        self.pool = pool
        self.first = 0  # the place in the sequence of the first page that is held
        self.ids: list[int] = []

    @property
    def end(self) -> int:
        """The place after the last page's."""
        return self.first + len(self.ids)

    def missing(self, n_tokens: int) -> int:
        """How many pages more it takes to hold what is behind them, up to `n_tokens` tokens."""
        return max(0, pages_for(n_tokens) - self.end)

    def grow(self, n_tokens: int) -> None:
        """Takes pages for the first `n_tokens`; raises MemoryLimitError when none is left."""
        for _ in range(self.missing(n_tokens)):
            self.ids.append(self.pool.take())

    def reaches(self, n_tokens: int) -> bool:
        """Whether a sequence can go on from its first `n_tokens`: all that it will see is held."""
        return self.first * PAGE <= self.pool.group.first_seen(n_tokens)

    def slide(self, n_tokens: int) -> None:
        """Frees the pages that nothing behind the first `n_tokens` tokens will see."""
        n = min(self.pool.group.first_seen(n_tokens) // PAGE - self.first, len(self.ids))
        for page in self.ids[: max(0, n)]:
            self.pool.release(page)
        del self.ids[: max(0, n)]
        self.first += max(0, n)

    def cut(self, n_tokens: int) -> None:
        """Frees the pages behind the first `n_tokens` tokens."""
        while self.ids and self.end > pages_for(n_tokens):
            self.pool.release(self.ids.pop())
        if not self.ids:
            self.first = 0 if not n_tokens else self.first

    def row(self, width: int) -> list[int]:
        """The group's table of the sequence, `width` long."""
        return [NO_PAGE] * self.first + self.ids + [NO_PAGE] * (width - self.end)


def pages_for(n_tokens: int) -> int:
    """How many pages hold `n_tokens` tokens."""
    return -(-n_tokens // PAGE)
