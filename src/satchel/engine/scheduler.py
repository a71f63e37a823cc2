"""Who advances by how many tokens in the next step, and who holds which pages.

Requests run by priority and in turn, see `engine.turns`. In a step each running one advances by a
token at least, and prompts that are being caught up with share the room that is left, which is less
when answers wait for the step.

What was computed is kept for those that come later, see `engine.prefix`: a request begins behind
what is known of its tokens. One that begins like another whose prompt is being computed waits for
that, and others go before it; so many answers to one prompt compute it once. When pages run out,
those are taken first that no request holds, then those of the request of the least priority that
came last: it waits, and later computes again what it lost. So the first one always gets on, and
nothing that is ever said depends on who else is there. With an eviction (`engine.eviction`), a
sequence whose part of the cache is full forgets some of its tokens before it goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from satchel.base.errors import MemoryLimitError
from satchel.engine.again import Again
from satchel.engine.arrival import BITE_BYTES, Arrival
from satchel.engine.eviction import Eviction
from satchel.engine.pace import Pace
from satchel.engine.prefix import Found, PrefixTree, shared
from satchel.engine.request import Delta, Request
from satchel.engine.saved import Saved
from satchel.engine.sequence import Sequence
from satchel.engine.share import Share
from satchel.engine.turns import by_rank, divide, in_turn
from satchel.runtime.batch import MAX_WANTED, PAGE, Batch, Model

if TYPE_CHECKING:
    import numpy.typing as npt

UP_TO = np.arange(MAX_WANTED, dtype=np.int32)


class Scheduler:
    """Plans steps as plain data. Not thread-safe: the engine sees to that."""

    def __init__(
        self, model: Model, tree: PrefixTree, saved: Saved, eviction: Eviction | None = None
    ) -> None:
        for pool in tree.pools:
            most = pool.most(model.context_length, model.max_batch)
            if eviction:
                most += pool.most(eviction.bound, 1)  # to move to
            if pool.n_pages < most:
                raise MemoryLimitError(
                    f"a context of {model.context_length} tokens takes {most} pages, and there are "
                    f"{pool.n_pages}"
                )
        self.tree, self.saved = tree, saved
        self.model, self.eviction = model, eviction
        windows = [group.window for group in model.groups]
        self.weighed = windows.index(None) if None in windows else 0
        self.most_slots = model.context_length
        self.copy_page = model.copy_page
        self.max_batch = model.max_batch
        self.max_running = min(MAX_WANTED, model.max_batch)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # by rank
        self.leaders: dict[Request, tuple[Request, int]] = {}  # who waits for whose first n tokens
        self.arrivals: dict[Request, Arrival] = {}  # whose tokens are on their way from disk
        self.bite_bytes = BITE_BYTES  # of them, in a step
        self.shares: list[Share] = []  # of the step that is under way
        self.is_repeated = False  # it is the one before once more
        self.again = Again()
        self.pace = Pace(model.max_batch)

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.waiting or self.running)

    def requests(self) -> list[Request]:
        """All of them, first those that run."""
        return [*self.running, *self.waiting]

    def repeat(self) -> list[int]:
        """The tokens of the next step where it is the last one again, each request one further;
        none where it has to be planned.
        """
        if self.waiting or self.arrivals:
            return []
        tokens = self.again.next_tokens()
        if tokens:
            self.shares, self.is_repeated = self.again.shares, True
        return tokens

    def next_batch(self) -> Batch | None:
        """The next step for the model, None when there is nothing to do."""
        self.shares, self.is_repeated = [], False
        self._admit()
        self._bring()
        self._forget()
        tokens, rows, at = self._divide(), MAX_WANTED, 0
        while at < len(self.running):
            request, at = self.running[at], at + 1
            if request in self.arrivals:
                continue
            later = len(self.running) - at
            most = min(tokens[request], self.most_slots - request.sequence.n_slots)
            share = _share(request, most, rows - later, MAX_WANTED - rows)
            if not self._make_room(request, partial(request.sequence.lacking, share.end)):
                break
            request.sequence.grow(share.end)
            self.shares.append(share)
            rows -= share.n_wanted
        if not self.shares:
            return None
        batch = _batch(self.shares)
        self.again.note(self.shares, self.most_slots)
        return batch

    def advance(self, answers: Iterable[list[int] | Exception]) -> list[Delta]:
        """Goes on by what each share of the step led to: its tokens, or why it failed."""
        deltas: list[Delta] = []
        n_ended = 0
        same_pages = self.is_repeated and self.again.n_left
        for share, answer in zip(self.shares, answers):  # noqa: B905 - so it is quicker
            request = share.request
            if same_pages:
                request.sequence.n_cached += 1
            else:
                self._settle(request.sequence, share.n_tokens)
                if not request.n_generated and answer:
                    self.tree.mark(request.sequence)  # another answer to the prompt begins here
            if isinstance(answer, Exception):
                delta = Delta(request, error=answer)
            else:
                delta = request.accept(answer)
            if delta is not None:
                deltas.append(delta)
                n_ended += delta.stats is not None or delta.error is not None
        self.shares = []
        if n_ended:
            self._let_go(deltas)
        return deltas

    def _settle(self, sequence: Sequence, n_tokens: int) -> None:
        """So many more are cached: what is full is shared, and what no one will see is let go."""
        n_before = sequence.n_cached // PAGE
        sequence.advance(n_tokens)
        if n_before < sequence.n_cached // PAGE:
            self.tree.extend(sequence)
        sequence.slide()

    def note_time(self, seconds: float) -> None:
        """The model took so long for the step that is under way."""
        self.pace.note(sum(s.n_tokens for s in self.shares if s.n_tokens > 1), seconds)

    def reap(self, now_s: float) -> list[Delta]:
        """Ends the requests that were cancelled, or whose time is over."""
        deltas: list[Delta] = []
        for requests in (self.running, self.waiting):
            for request in requests:
                if now_s >= request.due_s:
                    deltas.append(request.break_off())
        if deltas:
            self._let_go(deltas)
        return deltas

    def fail(self, error: Exception) -> list[Delta]:
        """Ends the requests of the step that failed; all of them when it was not even planned.

        What their sequences had cached before is untouched.
        """
        failed = [share.request for share in self.shares] or self.requests()
        deltas = [Delta(request, error=error) for request in failed]
        self.shares = []
        self._let_go(deltas)
        return deltas

    def check(self) -> None:
        """Asserts that every page is accounted for, between two steps."""
        running = [request.sequence for request in self.running]
        assert len(running) <= self.max_running, "more requests than a step has room for"
        whole = {sequence for sequence in running if not sequence.n_dropped}
        assert self.tree.at.keys() == whole, "the tree knows of others than those that run"
        for sequence in running:
            sequence.check()
        holders = (*running, *self.arrivals.values())
        assert self.arrivals.keys() <= set(self.running), "who waits has nothing on its way"
        for group, pool in enumerate(self.tree.pools):
            held = [pages[group] for pages in (holder.page_ids() for holder in holders)]
            pool.check(held, self.tree.pages(group))
        self.tree.check()

    def _let_go(self, deltas: list[Delta]) -> None:
        ended = {delta.request for delta in deltas if delta.is_last}
        if not ended:
            return
        self.again.forget()
        for request in self.running:
            if request in ended:
                self._leave(request)
        self.running = [r for r in self.running if r not in ended]
        self.waiting = deque(r for r in self.waiting if r not in ended)
        self.leaders = {r: leader for r, leader in self.leaders.items() if r not in ended}

    def _admit(self) -> None:
        """Takes up waiting requests in turn, while there is room for them beside those that run,
        or beside those of no less priority.
        """
        while turn := self._next():
            request, found = turn
            staying = list(self.running)
            while not self._fits(request, found, staying):
                if staying.pop().priority >= request.priority:
                    return
            if len(self.running) > len(staying):
                while len(self.running) > len(staying):
                    self._suspend()
                found = self._look_up(request)
            self.waiting.remove(request)
            self.running = by_rank([*self.running, request])
            self._begin(request, found)

    def _begin(self, request: Request, found: Found) -> None:
        """Has a request go on behind what is known of it, in memory or on disk."""
        sequence = request.sequence
        arrival = self._find_saved(request, found)
        if arrival:
            self.arrivals[request] = arrival
            found = self._whole(sequence, found)
        self.tree.begin(sequence, found, self.copy_page)
        request.begin()

    def _whole(self, sequence: Sequence, found: Found) -> Found:
        """What was found, but for the page that it ends in the middle of."""
        return self.tree.find(sequence.tokens, found.n_tokens // PAGE * PAGE)

    def _find_saved(self, request: Request, found: Found) -> Arrival | None:
        """What is on disk of a request's tokens, if it is more than is in memory and worth it."""
        if self.saved.is_empty or not self.tree.keeps:
            return None
        tokens, begin = request.sequence.tokens, self._whole(request.sequence, found)
        keys = self.saved.keys(tokens, self._n_reusable(request))
        arrival = Arrival(request.sequence, keys, begin.n_tokens // PAGE, self.saved)
        n_more = arrival.n_pages * PAGE - found.n_tokens
        is_worth = self.saved.is_worth_reading(n_more, arrival.n_bytes, self.pace)
        return arrival if n_more > 0 and is_worth else None

    def _bring(self) -> None:
        """Reads on what is on its way from disk."""
        for request, arrival in list(self.arrivals.items()):
            lacking = partial(arrival.lacking, self.bite_bytes)
            if request not in self.arrivals or not self._make_room(request, lacking):
                continue  # it gave way
            if not arrival.read(self.bite_bytes):
                self.arrivals.pop(request).give_up()
            elif not arrival.todo:
                self.arrivals.pop(request).settle()
                self.tree.extend(request.sequence)
                request.note_cached()

    def _full(self) -> list[Request]:
        """Those whose sequences have filled their part of the cache, and must forget something."""
        if self.eviction is None:
            return []
        return [r for r in self.running if r.sequence.n_slots >= self.most_slots]

    def _forget(self) -> None:
        """Has sequences forget tokens that have filled their part of the cache."""
        for request in self._full():
            sequence, eviction = request.sequence, self.eviction
            assert eviction is not None
            mass = self.model.mass(sequence.pages[self.weighed].ids) if eviction.weighs else None
            kept = eviction.kept(sequence.n_slots, mass)
            lacking = partial(sequence.lacking_to_move, len(kept))
            if request in self.running and self._make_room(request, lacking):
                moves = sequence.forget(kept)
                self.tree.part(sequence)
                self.model.move(moves)

    def _leave(self, request: Request) -> None:
        """What a request has computed is kept; its pages can be taken from it."""
        if arrival := self.arrivals.pop(request, None):
            arrival.give_up()
        self.tree.end(request.sequence)

    def _next(self) -> tuple[Request, Found] | None:
        """The waiting request whose turn it is, and what is known of its tokens."""
        for request in in_turn(self.waiting, self.running):
            if self._is_led(request):
                continue
            found = self._look_up(request)
            if leader := self._leader(request, found):
                self.leaders[request] = leader
                continue
            return request, found
        return None

    def _look_up(self, request: Request) -> Found:
        return self.tree.find(request.sequence.tokens, self._n_reusable(request))

    def _n_reusable(self, request: Request) -> int:
        return min(request.n_reusable, self.most_slots)

    def _is_led(self, request: Request) -> bool:
        """Whether it still waits for another to compute what both begin with."""
        if request not in self.leaders:
            return False
        leader, n_tokens = self.leaders[request]
        if leader in self.running and leader.sequence.n_cached < n_tokens:
            return True
        del self.leaders[request]
        return False

    def _leader(self, request: Request, found: Found) -> tuple[Request, int] | None:
        """Who is computing more of a request's first tokens than is known, and how many."""
        if not self.tree.keeps:
            return None
        most, tokens = self._n_reusable(request), request.sequence.tokens
        for other in self.running:
            ahead = other.sequence
            if ahead.n_pending > 1 and other.priority >= request.priority:
                n_tokens = min(most, shared(ahead.tokens, tokens))
                if n_tokens > max(found.n_tokens, ahead.n_cached):
                    return other, n_tokens
        return None

    def _fits(self, request: Request, found: Found, staying: list[Request]) -> bool:
        """Whether there are pages for a request, and one to grow for each of those that stay."""
        if not staying:
            return True
        if len(staying) >= self.max_running:
            return False
        for group, pool in enumerate(self.tree.pools):
            taken = {page for other in staying for page in other.sequence.pages[group].ids}
            n_shared = len(taken.intersection(self.tree.held(found, group)))
            n_tokens = min(len(request.sequence.tokens) + 1, self.most_slots)
            most = pool.most(n_tokens, self.max_batch)
            if len(taken) + max(0, most - n_shared) + len(staying) > pool.n_pages:
                return False
        return True

    def _divide(self) -> dict[Request, int]:
        """How many tokens each running request may have in the next step."""
        given = {request: 1 for request in self.running if request not in self.arrivals}
        prompts = in_turn([request for request in given if request.sequence.n_pending > 1])
        if prompts:
            room = self.max_batch - (len(given) - len(prompts))
            if len(prompts) < len(given):
                room = min(room, max(self.pace.limit, len(prompts)))
            pending = [request.sequence.n_pending for request in prompts]
            given |= dict(zip(prompts, divide(pending, room), strict=True))
        return given

    def _suspend(self) -> Request:
        """Has the last of those that run wait; its pages can be taken from it."""
        last = self.running.pop()
        self.waiting.appendleft(last)
        self._leave(last)
        return last

    def _make_room(self, request: Request, lacking: Callable[[], int | None]) -> bool:
        """Frees pages of the group that is lacking them; False when the request has to wait."""
        while (group := lacking()) is not None:
            if not self.tree.evict(group) and self._suspend() is request:
                return False
        return True


def _share(request: Request, max_tokens: int, max_rows: int, first_row: int) -> Share:
    """As many of a request's tokens as fit into so many tokens and rows of logits."""
    begin = request.sequence.n_cached
    wanted = max(begin, request.first_wanted)
    end = min(begin + max_tokens, len(request.sequence.tokens), wanted + max_rows)
    wanted = min(wanted, end)
    first = request.first_embedded
    embedded = end if first is None else min(max(begin, first), end)
    rows = slice(first_row, first_row + end - wanted)
    return Share(request, begin, end, wanted, rows, embedded)


def _batch(shares: list[Share]) -> Batch:
    tokens: list[int] = []
    positions: list[int] = []
    wanted: list[int] = []
    embedded: list[int] = []
    for share in shares:
        first = len(tokens) - share.begin
        tokens += share.request.sequence.tokens[share.begin : share.end]
        n_dropped = share.request.sequence.n_dropped
        positions += range(share.begin - n_dropped, share.end - n_dropped)
        wanted += range(first + share.wanted, first + share.end)
        embedded += range(first + share.embedded, first + share.end)
    rows = UP_TO[: len(shares)]
    if len(tokens) > len(shares):
        rows = rows.repeat([share.n_tokens for share in shares])
    return Batch(
        tokens=np.array(tokens, dtype=np.int32),
        positions=np.array(positions, dtype=np.int32),
        sequences=rows,
        tables=_tables(shares),
        wanted=np.array(wanted, dtype=np.int32),
        embedded=np.array(embedded, dtype=np.int32) if embedded else None,
    )


def _tables(shares: list[Share]) -> tuple[npt.NDArray[np.int32], ...]:
    """For each group, the pages of each share's sequence."""
    width = max(pages.end for share in shares for pages in share.request.sequence.pages)
    rows = [[pages.row(width) for pages in share.request.sequence.pages] for share in shares]
    return tuple(np.array(group, dtype=np.int32) for group in zip(*rows, strict=True))
