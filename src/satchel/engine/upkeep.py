"""What is written to disk, and when: texts that have rested a while, and pages that have to go.

Nothing is written while it would hold up those who wait: a text rests for some seconds before it is
saved, and beside running answers writing gets a small share of the time. Only what memory has no
room for is written at once, if that is worth it, see `Saved`. Short texts are not written: to
compute them again takes no time that one would notice, and disks wear out.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from satchel.engine.saved import next_key
from satchel.runtime.batch import NO_PAGE, PAGE

if TYPE_CHECKING:
    from satchel.engine.pace import Pace
    from satchel.engine.prefix import Node, PrefixTree
    from satchel.engine.saved import Saved

REST_S = 2.0  # how long a text is at rest before it is saved
LEAST_PAGES = 4  # of a text that is saved
BESIDE_BYTES = 1 << 20  # written at a time beside running answers, about
BESIDE_SHARE = 0.02  # of the time
ALONE_BYTES = 16 << 20  # written at a time while no one waits, as some one may come


class Upkeep:
    """Saves what is in the prefix tree. Used by the engine's thread."""

    def __init__(self, saved: Saved, tree: PrefixTree, pace: Pace) -> None:
        self.saved, self.tree, self.pace = saved, tree, pace
        self.least_pages = LEAST_PAGES
        self.resting: deque[tuple[float, Node]] = deque()  # since when, and where a text ends
        self.text: list[Node] = []  # that is being saved
        self.todo: deque[Node] = deque()  # of it
        self._free_s = 0.0  # when there is time to write beside answers
        if saved.folder and tree.keeps:
            tree.on_end, tree.on_drop = self._note, self._spill

    @property
    def due_s(self) -> float | None:
        """When there is something to write; None while there is not."""
        if self.todo:
            return 0.0
        return self.resting[0][0] + REST_S if self.resting else None

    def tend(self, now_s: float, n_bytes: int = ALONE_BYTES) -> None:
        """Writes about so many bytes, if it is time to."""
        while n_bytes > 0:
            if not self.todo:
                if not self.resting or self.resting[0][0] + REST_S > now_s:
                    return
                self._begin(self.resting.popleft()[1])
            n_bytes -= self._go_on()

    def tend_beside(self, now_s: float) -> None:
        """The same while answers wait, when there has been time enough for them."""
        if now_s >= self._free_s:
            begun_s = time.perf_counter()
            self.tend(now_s, BESIDE_BYTES)
            self._free_s = now_s + (time.perf_counter() - begun_s) / BESIDE_SHARE

    def flush(self) -> None:
        """Writes all."""
        while self.todo or self.resting:
            if not self.todo:
                self._begin(self.resting.popleft()[1])
            self._go_on()

    def _begin(self, end: Node) -> None:
        self.text = [*end.path()][::-1]
        self.todo.extend(self.text)

    def _go_on(self) -> int:
        """Writes a page of the text that is being saved; its bytes."""
        n_bytes = self._save(self.todo.popleft()) if self.todo else 0
        if not self.todo:
            self._touch(self.text)
        return n_bytes

    def _touch(self, text: list[Node]) -> None:
        self.saved.touch([self.key(node) for node in text if len(node.tokens) == PAGE])

    def _note(self, node: Node) -> None:
        """A text ends with this node for now."""
        if _full_pages(node) >= self.least_pages:
            self.resting.append((time.perf_counter(), node))

    def _spill(self, node: Node, group: int | None) -> None:
        """Memory has no room for a node's page any more; None: for none of them.

        What stands before it is saved too, for without that it is of no use.
        """
        if _full_pages(node) < self.least_pages or not self.saved.is_worth_writing(self.pace):
            return
        text = [*node.path()][::-1]
        n_bytes = sum(self._save(one, group if one is node else None) for one in text)
        if n_bytes:
            self._touch(text)

    def _save(self, node: Node, only: int | None = None) -> int:
        """Writes the pages of a node that are worth keeping; their bytes."""
        n_bytes = 0
        if len(node.tokens) < PAGE or node not in self.tree.nodes:
            return 0
        for group, page in enumerate(node.pages):
            if page == NO_PAGE or (only is not None and group != only):
                continue
            if group in self.saved.whole or node.used[group]:
                n_bytes += self.saved.write(self.key(node), group, page)
        return n_bytes

    def snapshot(self, tokens: Sequence[int]) -> list[tuple[bytes, int, bytes]]:
        """Key, group and content of the pages that it takes to go on behind most of `tokens`."""
        keys, path, node = self.saved.keys(tokens, len(tokens)), list["Node"](), self.tree.root
        for place in range(len(keys)):
            child = node.children.get(tuple(tokens[PAGE * place : PAGE * (place + 1)]))
            if child is None:
                break
            path.append(node := child)

        def in_memory(place: int, group: int) -> int:
            return path[place].pages[group] if place < len(path) else NO_PAGE

        def has(place: int, group: int) -> bool:
            return in_memory(place, group) != NO_PAGE or self.saved.has(keys[place], group)

        n_pages, found = self.saved.reach(len(keys), 0, has), list[tuple[bytes, int, bytes]]()
        for group in range(len(self.tree.pools)):
            first = self.saved.first(group, n_pages)
            for place in range(n_pages):
                page = in_memory(place, group)
                if place < first and (page == NO_PAGE or not path[place].used[group]):
                    continue  # no one will go on from where it is seen
                content = (
                    self.saved.read(keys[place], group)
                    if page == NO_PAGE
                    else self.saved.model.read_page(group, page)
                )
                if content is None:
                    return []  # it was damaged
                found.append((keys[place], group, content))
        return found

    def key(self, node: Node) -> bytes:
        """The key of a node's pages."""
        if not node.key:
            key = self.saved.root
            for one in [*node.path()][::-1]:
                one.key = key = one.key or next_key(key, one.tokens)
        return node.key


def _full_pages(node: Node) -> int:
    """How many full pages a text has that ends with a node."""
    return node.place + (len(node.tokens) == PAGE)
