"""What is written to disk, and when: texts that have rested a while, and pages that have to go.

Nothing is written while it would hold up those who wait: a text rests for some seconds before it is
saved, and beside running answers little is written at a time. Only what memory has no room for is
written at once, if that is worth it, see `Saved`.
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
BESIDE_BYTES = 1 << 20  # written in a step that others wait for, about
ALONE_BYTES = 16 << 20  # and in one that no one waits for, as some one may come


class Upkeep:
    """Saves what is in the prefix tree. Used by the engine's thread."""

    def __init__(self, saved: Saved, tree: PrefixTree, pace: Pace) -> None:
        self.saved, self.tree, self.pace = saved, tree, pace
        self.resting: deque[tuple[float, Node]] = deque()  # since when, and where a text ends
        self.todo: deque[Node] = deque()
        if saved.folder and tree.keeps:
            tree.on_end, tree.on_drop = self._note, self._spill

    @property
    def due_s(self) -> float | None:
        """When there is something to write; None while there is not."""
        if self.todo:
            return 0.0
        return self.resting[0][0] + REST_S if self.resting else None

    def tend(self, now_s: float, n_bytes: int) -> None:
        """Writes about so many bytes, if it is time to."""
        while n_bytes > 0:
            if not self.todo:
                if not self.resting or self.resting[0][0] + REST_S > now_s:
                    return
                self._begin(self.resting.popleft()[1])
            if self.todo:
                n_bytes -= self._save(self.todo.popleft())

    def flush(self) -> None:
        """Writes all."""
        while self.todo or self.resting:
            if not self.todo:
                self._begin(self.resting.popleft()[1])
            while self.todo:
                self._save(self.todo.popleft())

    def _begin(self, end: Node) -> None:
        self.todo.extend([*end.path()][::-1])

    def _note(self, node: Node) -> None:
        """A text ends with this node for now."""
        self.resting.append((time.perf_counter(), node))

    def _spill(self, node: Node, group: int | None) -> None:
        """Memory has no room for a node's page any more; None: for none of them."""
        if self.saved.is_worth_writing(self.pace):
            self._save(node, group)

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
