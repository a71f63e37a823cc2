"""What the KV cache still holds of all that was computed: a tree of tokens, a page of them a node.

A path from the root spells how a sequence began. Full pages of running sequences are put into the
tree as they fill, the last and partly filled one when a sequence ends; a new sequence holds the
pages of the longest path that it begins with, and gets a copy of the page that it shares in part,
for it will write to it. Since a token's keys and values depend on the tokens before it alone, down
to the last bit, no one can tell what was found here from what was computed.

Layers with a window need the pages of their window only, so one can go on from a place when these
are there. The tree keeps such pages of a path while no one needs the room. When room is needed,
those go first that no sequence has begun or ended at, and then those where that is longest ago. Of
layers that see everything, the ends of paths go, those first that were used longest ago.

Which that is, a heap for each group knows without looking at all nodes: a node is put into it when
it may have become one that can go, and whether it can, and when it was used, is seen when it comes
to the top.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count, takewhile
from typing import TYPE_CHECKING, TypeAlias

from satchel.runtime.batch import NO_PAGE, PAGE

if TYPE_CHECKING:
    from satchel.engine.pages import PagePool, Pages
    from satchel.engine.sequence import Sequence

Copy: TypeAlias = Callable[[int, int, int], None]  # as Model.copy_page: group, source, target


@dataclass(eq=False)
class Node:
    """Tokens that follow those of the nodes above, and the pages with what is known of them."""

    parent: Node | None
    place: int  # of its pages in a sequence
    tokens: tuple[int, ...]  # PAGE of them; fewer in a node without children
    pages: list[int]  # of each group; NO_PAGE where it is gone
    used: list[int]  # for each group, when a sequence last began or ended within reach; 0: never
    number: int = 0  # in the order in which they were made
    children: dict[tuple[int, ...], Node] = field(default_factory=dict[tuple[int, ...], "Node"])
    key: bytes = b""  # by which its pages are saved, once that is known
    live: dict[Sequence, None] = field(default_factory=dict["Sequence", None])  # go on from here

    def path(self) -> Iterator[Node]:
        """The nodes from this one up, without the root."""
        node = self
        while node.parent:
            yield node
            node = node.parent


@dataclass(frozen=True)
class Found:
    """How much of some tokens is known: full pages, and what more can be copied from `tail`."""

    node: Node  # of the last full page
    n_tokens: int
    tail: tuple[int, ...] = ()  # pages of all groups that hold the rest; none where there is none
    whole: Node | None = None  # the node of these pages, when no more than the rest is in it


class Oldest:
    """Some nodes, of which one can have the one that a group used longest ago, the first made of
    such.

    As times of use only grow, those in the heap may be too early: what comes to the top with such a
    one is put back with the right one.
    """

    def __init__(self, group: int) -> None:
        self.group = group
        self.heap: list[tuple[int, int, Node]] = []
        self.nodes: set[Node] = set()

    def put(self, node: Node) -> None:
        if node not in self.nodes:
            self.nodes.add(node)
            heappush(self.heap, (node.used[self.group], node.number, node))

    def take(self, can_go: Callable[[Node], bool]) -> Node | None:
        """Takes it out, and all before it that can't go; None when none can."""
        while self.heap:
            used, number, node = heappop(self.heap)
            if not can_go(node):
                self.nodes.remove(node)
            elif used < node.used[self.group]:
                heappush(self.heap, (node.used[self.group], number, node))
            else:
                self.nodes.remove(node)
                return node
        return None

    def keep_only(self, nodes: Container[Node]) -> None:
        """Forgets all others, once they are more than half: so these take no room for long."""
        self.heap = [entry for entry in self.heap if entry[2] in nodes]
        heapify(self.heap)
        self.nodes = {node for _, _, node in self.heap}


class PrefixTree:
    """The pages of all cache groups that can be gone on from. Without `keeps` it keeps none."""

    def __init__(self, pools: Items[PagePool], *, keeps: bool = True) -> None:
        self.pools = pools
        self.keeps = keeps
        self.root = Node(None, -1, (), [], [])
        self.nodes: dict[Node, None] = {}  # all but the root, in the order in which they were made
        self.on_end: Callable[[Node], None] | None = None  # a sequence ended here
        self.on_drop: Callable[[Node, int | None], None] | None = None  # a group's page goes; all
        self.at: dict[Sequence, Node] = {}  # of running ones, the node of the last full page
        self.clock = 0
        self.numbers = count(1)
        self.owners = [dict[int, Node]() for _ in pools]  # of each group's pages that are kept
        self.oldest = [Oldest(group) for group in range(len(pools))]

    def find(self, tokens: Items[int], most: int) -> Found:
        """The longest of the first `most` tokens, and no more, that one can go on from."""
        node = self.root
        if not self.keeps:
            return Found(node, 0)
        while (end := PAGE * (node.place + 2)) <= most:
            child = node.children.get(tuple(tokens[end - PAGE : end]))
            if child is None:
                break
            node = child
        begin = PAGE * (node.place + 1)
        found = self._with_tail(node, tuple(tokens[begin : min(begin + PAGE, most)]))
        while not self._reaches(found):
            assert found.node.parent or found.tail
            node = found.node if found.tail else found.node.parent or self.root
            found = Found(node, PAGE * (node.place + 1))
        return found

    def _with_tail(self, node: Node, rest: tuple[int, ...]) -> Found:
        """What is known behind a node: of its children, or of sequences that are under way."""
        begin = PAGE * (node.place + 1)
        found = Found(node, begin)
        for child in node.children.values():
            n = shared(child.tokens, rest)
            if begin + n > found.n_tokens:
                whole = child if n == len(child.tokens) else None
                found = Found(node, begin + n, tuple(child.pages), whole)
        for sequence in node.live:
            n = shared(sequence.tokens[begin : sequence.n_cached], rest)
            if begin + n > found.n_tokens:
                pages = tuple(pages.page(node.place + 1) for pages in sequence.pages)
                found = Found(node, begin + n, pages)
        return found

    def _reaches(self, found: Found) -> bool:
        """Whether all that is seen from a place is there."""
        for group, pool in enumerate(self.pools):
            if found.tail and found.tail[group] == NO_PAGE:
                return False
            if pool.group.window is not None:
                first = pool.group.first_seen(found.n_tokens) // PAGE
                seen = takewhile(lambda node, first=first: node.place >= first, found.node.path())
                if any(node.pages[group] == NO_PAGE for node in seen):
                    return False
        return True

    def held(self, found: Found, group: int) -> list[int]:
        """The full pages of a group that are seen from what was found on."""
        first = self.pools[group].group.first_seen(found.n_tokens) // PAGE
        return [node.pages[group] for node in found.node.path() if node.place >= first][::-1]

    def begin(self, sequence: Sequence, found: Found, copy: Copy) -> None:
        """A sequence without pages goes on from what was found.

        Where there is no room for the copy, what the tail holds is left to compute.
        """
        for group, (pool, pages) in enumerate(zip(self.pools, sequence.pages, strict=True)):
            pages.first = pool.group.first_seen(found.n_tokens) // PAGE
            pages.ids = self.held(found, group)
            for page in pages.ids:
                pool.share(page)
        self.at[sequence] = found.node
        found.node.live[sequence] = None
        if found.tail and not self._take_tail(sequence, found, copy):
            self._leave(sequence)
            most = PAGE * (found.node.place + 1)
            self.begin(sequence, self.find(sequence.tokens, most), copy)
            return
        sequence.n_cached = found.n_tokens
        self._touch(found.node, found.n_tokens)

    def _take_tail(self, sequence: Sequence, found: Found, copy: Copy) -> bool:
        """The tail becomes the sequence's own; whether there was room for that."""
        for pool, page in zip(self.pools, found.tail, strict=True):
            pool.share(page)  # so that making room spares it
        if found.whole:
            self._remove(found.whole)
            for pages, page in zip(sequence.pages, found.tail, strict=True):
                pages.ids.append(page)
            return True
        fits = all(pool.n_free or self.evict(group) for group, pool in enumerate(self.pools))
        if fits:
            for group, pages in enumerate(sequence.pages):
                pages.ids.append(self.pools[group].take())
                copy(group, found.tail[group], pages.ids[-1])
        for pool, page in zip(self.pools, found.tail, strict=True):
            pool.release(page)
        return fits

    def extend(self, sequence: Sequence) -> None:
        """Puts the pages into the tree that a sequence has filled since."""
        if sequence not in self.at:
            return
        node = self.at[sequence]
        while self.keeps and (end := PAGE * (node.place + 2)) <= sequence.n_cached:
            tokens = tuple(sequence.tokens[end - PAGE : end])
            child = node.children.get(tokens) or self._add(node, tokens)
            for group, pages in enumerate(sequence.pages):
                self._merge(group, child, pages)
            del node.live[sequence]
            child.live[sequence] = None
            self.at[sequence] = node = child

    def mark(self, sequence: Sequence) -> None:
        """Others may begin where a sequence is now: what is seen from here is worth keeping."""
        if sequence in self.at:
            self._touch(self.at[sequence], sequence.n_cached)

    def part(self, sequence: Sequence) -> None:
        """A sequence has forgotten some of its tokens: it is no one's beginning any more."""
        if node := self.at.pop(sequence, None):
            del node.live[sequence]
            self._prune(node)

    def end(self, sequence: Sequence) -> None:
        """Keeps what a sequence has computed, and takes its pages from it."""
        if sequence not in self.at:
            sequence.clear()
            return
        self.extend(sequence)
        node = self.at[sequence]
        rest = tuple(sequence.tokens[PAGE * (node.place + 1) : sequence.n_cached])
        known = any(
            child.tokens[: len(rest)] == rest and NO_PAGE not in child.pages
            for child in node.children.values()
        )
        if self.keeps and rest and not known:
            node = self._add(node, rest)
            for group, pages in enumerate(sequence.pages):
                self._merge(group, node, pages)
        self._touch(node, sequence.n_cached)
        if self.on_end:
            self.on_end(node)
        self._leave(sequence)

    def _leave(self, sequence: Sequence) -> None:
        node = self.at.pop(sequence)
        del node.live[sequence]
        sequence.clear()
        self._prune(node)

    def _add(self, parent: Node, tokens: tuple[int, ...]) -> Node:
        """A new node, which takes the place of those whose tokens it begins with."""
        for old in [child for child in parent.children.values() if len(child.tokens) < len(tokens)]:
            if tokens[: len(old.tokens)] == old.tokens and self._is_idle(old):
                self._remove(old)
        n = len(self.pools)
        node = Node(parent, parent.place + 1, tokens, [NO_PAGE] * n, [0] * n, next(self.numbers))
        parent.children[tokens] = node
        self.nodes[node] = None
        return node

    def _merge(self, group: int, node: Node, pages: Pages) -> None:
        """Of two pages with the same content one is kept, by the tree and the sequence."""
        pool, own, known = self.pools[group], pages.page(node.place), node.pages[group]
        if own == NO_PAGE:
            return
        if known == NO_PAGE:
            node.pages[group] = own
            self.owners[group][own] = node
            pool.keep(own)
        elif known != own:
            pool.share(known)
            pool.release(own)
            pages.ids[node.place - pages.first] = known

    def _touch(self, node: Node, n_tokens: int) -> None:
        """A sequence began or ended behind `n_tokens`: what it sees from there is worth keeping.

        From the last full page on, for those that are saved are full.
        """
        self.clock += 1
        whole = n_tokens // PAGE * PAGE
        first = [pool.group.first_seen(whole) // PAGE for pool in self.pools]
        for above in node.path():
            above.used = [
                self.clock if above.place >= n else used
                for n, used in zip(first, above.used, strict=True)
            ]

    def evict(self, group: int) -> bool:
        """Frees a page of a group that no sequence holds; False when there is none."""
        self._note_idle()
        node = self.oldest[group].take(lambda node: self._can_go(node, group))
        if node is None:
            return False
        pool = self.pools[group]
        if pool.group.window is None:
            above = node.parent
            self._drop(node)
        else:
            if self.on_drop:
                self.on_drop(node, group)
            self._drop_page(node, group)
            above = node
        if above:
            self._prune(above)
        return True

    def _can_go(self, node: Node, group: int) -> bool:
        """Whether a page of a group gets free when a node, or with a window its page, goes."""
        if self.pools[group].group.window is None:
            return node in self.nodes and self._is_idle(node)
        return self.pools[group].is_idle(node.pages[group])

    def _note_idle(self) -> None:
        """Who owned pages that sequences have let go since may be one that can go."""
        for group, pool in enumerate(self.pools):
            for page in pool.let_go:
                if node := self.owners[group].get(page):
                    self.oldest[group].put(node)
                    self._note_end(node)
            pool.let_go.clear()
        for oldest in self.oldest:
            if len(oldest.heap) > 2 * len(self.nodes):
                oldest.keep_only(self.nodes)

    def _note_end(self, node: Node) -> None:
        """A node may have become an end that no sequence holds."""
        for oldest, pool in zip(self.oldest, self.pools, strict=True):
            if pool.group.window is None:
                oldest.put(node)

    def _is_idle(self, node: Node) -> bool:
        """Whether it is an end, and no sequence holds any of its pages."""
        if node.children or node.live:
            return False
        pairs = zip(self.pools, node.pages, strict=True)
        return all(page == NO_PAGE or pool.is_idle(page) for pool, page in pairs)

    def _prune(self, node: Node) -> None:
        """Removes ends that one can't go on from, since a page is gone."""
        while node.parent and NO_PAGE in node.pages and self._is_idle(node):
            above = node.parent
            self._drop(node)
            node = above

    def _drop(self, node: Node) -> None:
        if self.on_drop:
            self.on_drop(node, None)
        self._remove(node)

    def _remove(self, node: Node) -> None:
        above = node.parent
        assert above
        assert not node.children
        del self.nodes[node], above.children[node.tokens]
        for group, page in enumerate(node.pages):
            if page != NO_PAGE:
                self._drop_page(node, group)
        if above.parent and not above.children:
            self._note_end(above)

    def _drop_page(self, node: Node, group: int) -> None:
        page, node.pages[group] = node.pages[group], NO_PAGE
        del self.owners[group][page]
        self.pools[group].drop(page)

    def check(self) -> None:
        """Asserts that the tree hangs together, and that what it keeps can be gone on from."""
        for node in (self.root, *self.nodes):
            assert len(node.tokens) == PAGE or node.parent is None or not node.children
            assert list(node.children) == [child.tokens for child in node.children.values()]
            for sequence in node.live:
                assert self.at[sequence] is node
            for child in node.children.values():
                assert child.parent is node
                assert child.place == node.place + 1
                assert child in self.nodes
            if node.parent:
                assert node.parent.children[node.tokens] is node
                assert not self._is_idle(node) or NO_PAGE not in node.pages, "an end of no use"
                for group, pool in enumerate(self.pools):
                    assert pool.group.window is not None or node.pages[group] != NO_PAGE
        for group in range(len(self.pools)):
            kept = {node.pages[group]: node for node in self.nodes if node.pages[group] != NO_PAGE}
            assert self.owners[group] == kept, "a page is not where its owner says"
        self._note_idle()
        for group, oldest in enumerate(self.oldest):
            can_go = {node for node in self.nodes if self._can_go(node, group)}
            assert can_go <= oldest.nodes, "a node that can go will never be found"
            assert oldest.nodes == {node for _, _, node in oldest.heap}
            assert all(used <= node.used[group] for used, _, node in oldest.heap)

    def pages(self, group: int) -> list[int]:
        """All that it keeps of a group."""
        return list(self.owners[group])


def shared(one: Items[int], other: Items[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
