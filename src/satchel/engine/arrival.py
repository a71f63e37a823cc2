"""Pages of a text on their way from disk to memory, some of them each step."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING

from satchel.runtime.batch import PAGE

if TYPE_CHECKING:
    from satchel.engine.saved import Saved
    from satchel.engine.sequence import Sequence

BITE_BYTES = 16 << 20  # of a step that others wait for: some 20 ms


class Arrival:
    """What a sequence has in memory ends with a full page; what follows is on disk."""

    def __init__(self, sequence: Sequence, keys: Items[bytes], begin: int, saved: Saved) -> None:
        """`keys` are those of the text's pages, of which the first `begin` are in memory."""
        self.sequence, self.saved = sequence, saved
        self.n_pages = saved.reach(len(keys), begin, lambda n, group: saved.has(keys[n], group))
        self._keys = keys
        self.pages: tuple[list[int], ...] = tuple([] for _ in sequence.pages)  # taken, and filled
        self.todo = deque(
            (group, place)
            for group in (*saved.whole, *saved.windows)
            for place in range(max(begin, saved.first(group, self.n_pages)), self.n_pages)
        )

    @property
    def n_bytes(self) -> int:
        """What is yet to be read."""
        return sum(self.saved.model.groups[group].page_bytes for group, _ in self.todo)

    def page_ids(self) -> list[list[int]]:
        """Of each group, the pages that have come."""
        return list(self.pages)

    def lacking(self, n_bytes: int) -> int | None:
        """A group that has too few free pages for the next bite; None: there is room."""
        counts = self._next_pages(n_bytes)
        for group, pages in enumerate(self.sequence.pages):
            if counts[group] > pages.pool.n_free:
                return group
        return None

    def _next_pages(self, n_bytes: int) -> list[int]:
        """How many pages of each group make the next bite."""
        counts = [0] * len(self.pages)
        for group, _ in self.todo:
            if n_bytes <= 0:
                break
            counts[group] += 1
            n_bytes -= self.saved.model.groups[group].page_bytes
        return counts

    def read(self, n_bytes: int) -> bool:
        """Brings the next bite, for which there is room; False when a page is gone meanwhile."""
        for _ in range(sum(self._next_pages(n_bytes))):
            group, place = self.todo[0]
            content = self.saved.read(self._keys[place], group)
            if content is None:
                return False
            page = self.sequence.pages[group].pool.take()
            self.pages[group].append(page)
            self.saved.model.write_page(group, page, content)
            self.todo.popleft()
        return True

    def settle(self) -> None:
        """All are there: they are the sequence's."""
        assert not self.todo
        for group, (pages, arrived) in enumerate(zip(self.sequence.pages, self.pages, strict=True)):
            first = self.saved.first(group, self.n_pages)
            while pages.ids and pages.first < first:
                pages.pool.release(pages.ids.pop(0))
                pages.first += 1
            pages.first = pages.first if pages.ids else first
            pages.ids += arrived
        self.sequence.n_cached = self.n_pages * PAGE
        self.saved.touch(self._keys[: self.n_pages])

    def give_up(self) -> None:
        """Gives back what has come."""
        for pages, arrived in zip(self.sequence.pages, self.pages, strict=True):
            for page in arrived:
                pages.pool.release(page)
            arrived.clear()
