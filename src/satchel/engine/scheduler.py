"""Who advances by how many tokens in the next step, and who holds which pages.

Requests run by priority and in turn, see `engine.turns`. In a step each running one advances by a
token at least, and prompts that are being caught up with share the room that is left, which is less
when answers wait for the step. When pages run out, they are taken first from sessions that no one
is asking, then from the request of the least priority that came last: it waits, and later computes
again what it lost. So the first one always gets on, and nothing that is ever said depends on who
else is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from satchel.base.errors import MemoryLimitError
from satchel.engine.pace import Pace
from satchel.engine.pages import PagePool, pages_for
from satchel.engine.request import Delta, Request
from satchel.engine.sequence import Sequence
from satchel.engine.turns import by_rank, divide, in_turn
from satchel.runtime.batch import MAX_WANTED, PAGE, Batch, Model

if TYPE_CHECKING:
    import numpy.typing as npt

UP_TO = np.arange(MAX_WANTED, dtype=np.int32)


@dataclass(frozen=True)
class Share:
    """A request's part of a step: its next tokens, from position `begin` to `end`.

    The logits of those from `wanted` on are rows `rows` of what the model gives; of those from
    `embedded` on the final states are read.
    """

    request: Request
    begin: int
    end: int
    wanted: int
    rows: slice
    embedded: int

    @property
    def n_tokens(self) -> int:
        """How many tokens it computes."""
        return self.end - self.begin

    @property
    def n_wanted(self) -> int:
        """How many rows of logits it reads."""
        return self.end - self.wanted

    @property
    def n_embedded(self) -> int:
        """How many states it reads."""
        return self.end - self.embedded


class Scheduler:
    """Plans steps as plain data. Not thread-safe: the engine sees to that."""

    def __init__(self, model: Model, pools: tuple[PagePool, ...]) -> None:
        for pool in pools:
            most = pool.most(model.context_length, model.max_batch)
            if pool.n_pages < most:
                raise MemoryLimitError(
                    f"a context of {model.context_length} tokens takes {most} pages, and there are "
                    f"{pool.n_pages}"
                )
        self.pools = pools
        self.max_batch = model.max_batch
        self.max_running = min(MAX_WANTED, model.max_batch)
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []  # by rank
        self.idle: dict[Sequence, None] = {}  # not running, but with pages; the longest idle first
        self.shares: list[Share] = []  # of the step that is under way
        self.pace = Pace(model.max_batch)

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self.waiting or self.running)

    def requests(self) -> list[Request]:
        """All of them, first those that run."""
        return [*self.running, *self.waiting]

    def next_batch(self) -> Batch | None:
        """The next step for the model, None when there is nothing to do."""
        self.shares = []
        self._admit()
        tokens, rows = self._divide(), MAX_WANTED
        while len(self.shares) < len(self.running):
            request = self.running[len(self.shares)]
            later = len(self.running) - len(self.shares) - 1
            share = _share(request, tokens[request], rows - later, MAX_WANTED - rows)
            if not self._make_room(request, share.end):
                break
            request.sequence.grow(share.end)
            self.shares.append(share)
            rows -= share.n_wanted
        return _batch(self.shares) if self.shares else None

    def advance(self, answers: Iterable[list[int] | Exception]) -> list[Delta]:
        """Goes on by what each share of the step led to: its tokens, or why it failed."""
        deltas: list[Delta] = []
        for share, answer in zip(self.shares, answers, strict=True):
            request = share.request
            request.sequence.advance(share.n_tokens)
            if isinstance(answer, Exception):
                deltas.append(Delta(request, error=answer))
            elif delta := request.accept(answer):
                deltas.append(delta)
        self.shares = []
        self._let_go(deltas)
        return deltas

    def note_time(self, seconds: float) -> None:
        """The model took so long for the step that is under way."""
        self.pace.note(sum(s.n_tokens for s in self.shares if s.n_tokens > 1), seconds)

    def reap(self, now_s: float) -> list[Delta]:
        """Ends the requests that were cancelled, or whose time is over."""
        deltas = [
            request.finish(reason)
            for request in self.requests()
            if (reason := request.broken_off(now_s))
        ]
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

    def forget(self, sequence: Sequence) -> None:
        """Frees the pages of a session's sequence, now or when its request has ended."""
        sequence.kept = False
        if sequence in self.idle:
            del self.idle[sequence]
            sequence.roll_back(0)

    def check(self) -> None:
        """Asserts that every page is accounted for, between two steps."""
        running = [request.sequence for request in self.running]
        assert not self.idle.keys() & set(running), "a running sequence counts as idle"
        assert len(running) <= self.max_running, "more requests than a step has room for"
        sequences = (*running, *self.idle)
        for sequence in sequences:
            sequence.check()
        for i, pool in enumerate(self.pools):
            pool.check([sequence.pages[i].ids for sequence in sequences])

    def _let_go(self, deltas: list[Delta]) -> None:
        ended = {delta.request for delta in deltas if delta.is_last}
        if not ended:
            return
        self.running = [r for r in self.running if r not in ended]
        self.waiting = deque(r for r in self.waiting if r not in ended)
        for sequence in {request.sequence for request in ended} - self._busy():
            self.idle.pop(sequence, None)
            sequence.roll_back(sequence.n_cached if sequence.kept else 0)
            if sequence.n_cached:
                self.idle[sequence] = None

    def _busy(self) -> set[Sequence]:
        return {request.sequence for request in self.running}

    def _admit(self) -> None:
        """Takes up waiting requests in turn, while there is room for them beside those that run,
        or beside those of no less priority.
        """
        while self.waiting:
            busy = self._busy()
            ordered = in_turn(self.waiting, self.running)
            request = next((r for r in ordered if r.sequence not in busy), None)
            staying = list(self.running)
            while request and not self._fits(request, staying):
                if staying.pop().priority >= request.priority:
                    return
            if request is None:
                return
            while len(self.running) > len(staying):
                self._suspend()
            self.waiting.remove(request)
            self.running = by_rank([*self.running, request])
            self.idle.pop(request.sequence, None)
            request.begin()

    def _fits(self, request: Request, staying: list[Request]) -> bool:
        """Whether there are pages for a request, and one to grow for each of those that stay."""
        if not staying:
            return True
        held = {r.sequence for r in staying}
        others = [r.sequence for r in self.running if r.sequence not in held]
        spare = [
            pool.n_free + sum(len(sequence.pages[i].ids) for sequence in (*self.idle, *others))
            for i, pool in enumerate(self.pools)
        ]
        return len(staying) < self.max_running and all(
            pool.most(request.length + 1, self.max_batch) + len(staying) <= pages
            for pool, pages in zip(self.pools, spare, strict=True)
        )

    def _divide(self) -> dict[Request, int]:
        """How many tokens each running request may have in the next step."""
        given = dict.fromkeys(self.running, 1)
        prompts = in_turn([r for r in self.running if r.sequence.n_pending > 1])
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
        if last.sequence.n_cached:
            self.idle[last.sequence] = None
        return last

    def _make_room(self, request: Request, n_tokens: int) -> bool:
        """Frees pages until `n_tokens` of a request's tokens fit; False when it has to wait."""
        while not request.sequence.fits(n_tokens):
            if self.idle:
                coldest = next(iter(self.idle))
                coldest.roll_back((coldest.n_cached - 1) // PAGE * PAGE)
                if not coldest.n_cached:
                    del self.idle[coldest]
                continue
            if self._suspend() is request:
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
        positions += range(share.begin, share.end)
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
    width = pages_for(max(share.end for share in shares))
    rows = [[pages.row(width) for pages in share.request.sequence.pages] for share in shares]
    return tuple(np.array(group, dtype=np.int32) for group in zip(*rows, strict=True))
