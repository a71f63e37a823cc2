"""The pages of the KV cache: which are free, how many sequences hold each of the others, and which
are kept though no sequence holds them.

Only ids are counted here; the memory behind them is the model's. Pages that were used before are
handed out first, so that no more memory is ever touched than was needed at one time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from satchel.base.errors import MemoryLimitError
from satchel.runtime.batch import NO_PAGE, PAGE, CacheGroup, Moves, pages_within

if TYPE_CHECKING:
    import numpy.typing as npt


class PagePool:
    """Counts who holds each page of a cache group. A page that two sequences hold is read only.

    A page that no sequence holds is free, or idle: kept for what it holds, see PrefixTree.
    """

    def __init__(self, group: CacheGroup) -> None:
        self.group = group
        self.n_pages = n_pages = group.n_pages
        self.holders = [0] * n_pages
        self.free = list(range(n_pages - 1, -1, -1))  # a stack: page 0 on top, then the last freed
        self.used: set[int] = set()  # those that memory has been taken for
        self.kept: set[int] = set()
        self.n_idle = 0
        self.let_go: set[int] = set()  # kept ones that became idle, until the tree takes note

    def most(self, n_tokens: int, chunk: int) -> int:
        """The pages that a sequence of so many tokens holds at most, `chunk` of them in a step."""
        whole, window = pages_for(n_tokens), self.group.window
        return whole if window is None else min(whole, pages_within(window - 1 + chunk))

    @property
    def n_free(self) -> int:
        """How many pages no one holds, nor keeps."""
        return len(self.free)

    @property
    def n_held(self) -> int:
        """How many pages sequences hold."""
        return self.n_pages - len(self.free) - self.n_idle

    def take(self) -> int:
        """A free page, now held once; raises MemoryLimitError when there is none."""
        if not self.free:
            raise MemoryLimitError(f"all {self.n_pages} pages of the KV cache are in use")
        page = self.free.pop()
        self.used.add(page)
        self.holders[page] = 1
        return page

    def share(self, page: int) -> None:
        """One more sequence holds a page that is not free."""
        assert self.holders[page] > 0 or page in self.kept, f"page {page} is free"
        self.n_idle -= not self.holders[page]
        self.holders[page] += 1

    def release(self, page: int) -> None:
        """One sequence less holds a page; the last one frees it, unless it is kept."""
        assert self.holders[page] > 0, f"no one holds page {page}"
        self.holders[page] -= 1
        if self.holders[page]:
            return
        if page in self.kept:
            self.n_idle += 1
            self.let_go.add(page)
        else:
            self.free.append(page)

    def keep(self, page: int) -> None:
        """A page that a sequence holds will not be free when none holds it any more."""
        assert self.holders[page] > 0, f"no one holds page {page}"
        assert page not in self.kept, f"page {page} is kept already"
        self.kept.add(page)

    def drop(self, page: int) -> None:
        """A page is not kept any more; it is free unless a sequence holds it."""
        self.kept.remove(page)
        if not self.holders[page]:
            self.n_idle -= 1
            self.free.append(page)

    def give_back(self) -> list[int]:
        """The free pages that memory was taken for, which their memory is taken from now."""
        pages = [page for page in self.free if page in self.used]
        self.used.difference_update(pages)
        self.free.sort(reverse=True)
        return pages

    def is_idle(self, page: int) -> bool:
        """Whether a page is kept, and no sequence holds it."""
        return page in self.kept and not self.holders[page]

    def check(self, tables: Iterable[Sequence[int]], kept: Sequence[int] = ()) -> None:
        """Asserts that `tables`, the pages of all sequences, and `kept`, those that are kept,
        explain the state of every page.
        """
        held = Counter[int]()
        for table in tables:
            assert len(set(table)) == len(table), f"a page twice in one sequence: {table}"
            held.update(table)
        for page, count in enumerate(self.holders):
            assert count == held[page], f"page {page} counts {count} holders, {held[page]} hold it"
        assert held.keys() <= set(range(self.n_pages)), f"no such page: {held.keys()}"
        assert len(set(self.free)) == len(self.free), "a page is free twice"
        assert len(set(kept)) == len(kept), "a page is kept twice"
        assert set(kept) == self.kept, "other pages are kept than should be"
        unheld = {page for page, count in enumerate(self.holders) if not count}
        assert set(self.free) == unheld - self.kept, "a page is lost"
        assert set(range(self.n_pages)) - unheld <= self.used, "a page is held, but not used"
        assert self.n_idle == len(unheld & self.kept), "idle pages are miscounted"


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

    def page(self, place: int) -> int:
        """The page at a place in the sequence; NO_PAGE where none is held."""
        return self.ids[place - self.first] if self.first <= place < self.end else NO_PAGE

    def missing(self, n_tokens: int) -> int:
        """How many pages more it takes to hold what is behind them, up to `n_tokens` tokens."""
        return max(0, pages_for(n_tokens) - self.end)

    def grow(self, n_tokens: int) -> None:
        """Takes pages for the first `n_tokens`; raises MemoryLimitError when none is left."""
        for _ in range(self.missing(n_tokens)):
            self.ids.append(self.pool.take())

    def slide(self, n_tokens: int) -> None:
        """Lets go of the pages that nothing behind the first `n_tokens` tokens will see."""
        n = self.pool.group.first_seen(n_tokens) // PAGE - self.first
        if not n:
            return
        for page in self.ids[:n]:
            self.pool.release(page)
        self.first, self.ids = self.first + n, self.ids[n:]

    def count_from_window(self, n_tokens: int) -> int:
        """How many pages hold what is seen from behind the first `n_tokens` tokens."""
        return max(0, pages_for(n_tokens) - self.pool.group.first_seen(n_tokens) // PAGE)

    def forget(self, kept: npt.NDArray[np.int64]) -> Moves:
        """Has other pages, to which the slots of these positions are to be moved, and no others.

        What lies before the window is left behind. Raises MemoryLimitError when pages are lacking.
        """
        n = self.count_from_window(len(kept))
        first = pages_for(len(kept)) - n
        old = np.full(n * PAGE, -1)
        old[: len(kept) - first * PAGE] = kept[first * PAGE :]
        places = old // PAGE - self.first
        held = (old >= 0) & (places >= 0)
        ids = np.array(self.ids)[np.where(held, places, 0)]
        sources = np.where(held, ids * PAGE + old % PAGE, -1)
        shifts = np.where(held, old - np.arange(first * PAGE, (first + n) * PAGE), 0)
        targets = [self.pool.take() for _ in range(n)]
        self.clear()
        self.first, self.ids = first, targets
        return Moves(
            np.array(targets, np.int32),
            sources.astype(np.int32).reshape(-1, PAGE),
            shifts.astype(np.int32).reshape(-1, PAGE),
        )

    def clear(self) -> None:
        """Lets go of all."""
        for page in self.ids:
            self.pool.release(page)
        self.first, self.ids = 0, []

    def row(self, width: int) -> list[int]:
        """The group's table of the sequence, `width` long."""
        return [NO_PAGE] * self.first + self.ids + [NO_PAGE] * (width - self.end)


def pages_for(n_tokens: int) -> int:
    """How many pages hold `n_tokens` tokens."""
    return -(-n_tokens // PAGE)
