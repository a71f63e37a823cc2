"""The loop: plan a step, run it, read its logits, go on."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import proxy

from satchel.base.errors import SatchelError
from satchel.engine.eviction import Eviction, check_eviction
from satchel.engine.pages import PagePool
from satchel.engine.prefix import PrefixTree
from satchel.engine.relief import Relief
from satchel.engine.request import Delta, Request
from satchel.engine.rows import Logits
from satchel.engine.saved import Saved
from satchel.engine.scheduler import Scheduler
from satchel.engine.sequence import Sequence
from satchel.engine.share import Share
from satchel.engine.upkeep import Upkeep
from satchel.machine.memory import resident_bytes
from satchel.runtime.batch import Batch, Model

if TYPE_CHECKING:
    from satchel.files.page_files import PageFolder


@dataclass(frozen=True)
class GroupUsage:
    """The pages of the layers that see equally far."""

    window: int | None  # how far they see, in tokens; None: all
    pages: int
    pages_in_use: int  # by requests
    pages_kept: int  # that no request uses, for what they hold; given to those that need them


@dataclass(frozen=True)
class MemoryUsage:
    """In bytes. Weights and activations are taken as they are used, the KV cache page by page."""

    weights: int
    activations: int
    kv: int  # all pages
    kv_taken: int  # of these, the ones that memory has been taken for
    process: int | None  # what the whole process has, by the system's count; None: not known
    given_back: int  # of pages, while memory was short
    refused: int  # requests, for the same reason


@dataclass(frozen=True)
class Usage:
    """What an engine is doing, and has done since it began."""

    running: int  # requests
    waiting: int
    groups: tuple[GroupUsage, ...]
    steps: int
    shares: int  # requests that took part in a step, summed over all steps
    memory: MemoryUsage
    pages_written: int  # to disk
    pages_read: int  # from there

    @property
    def pages(self) -> int:
        """Of all groups."""
        return sum(group.pages for group in self.groups)

    @property
    def pages_in_use(self) -> int:
        """Of all groups."""
        return sum(group.pages_in_use for group in self.groups)

    @property
    def pages_kept(self) -> int:
        """Of all groups."""
        return sum(group.pages_kept for group in self.groups)


class Engine:
    """Lets many requests share the steps of one model.

    `submit` may be called by any thread at any time; `step` and `fail` by one thread at a time.
    """

    def __init__(
        self,
        model: Model,
        folder: PageFolder | None = None,
        *,
        prefix_cache: bool = True,
        eviction: Eviction | None = None,
    ) -> None:
        """Pages are saved in `folder`, and found there. Without `prefix_cache`, nothing that was
        computed is kept for those that come later. With `eviction`, whose bound must be the model's
        context, sequences may be longer than that.

        Raises MemoryLimitError when the model's pages can't hold one full context; OptionError for
        an eviction that layers with windows don't allow.
        """
        if eviction:
            check_eviction(eviction, model)
            prefix_cache = prefix_cache and not eviction.weighs  # weights depend on who was there
        self.model = model
        self.pools = tuple(PagePool(group) for group in model.groups)
        self.saved = Saved(model, folder)
        self.tree = PrefixTree(self.pools, keeps=prefix_cache)
        self.scheduler = Scheduler(model, self.tree, self.saved, eviction)
        self.eviction = eviction
        self.upkeep = Upkeep(self.saved, self.tree, self.scheduler.pace)
        self.relief = Relief(proxy(self))  # no cycle: memory is free once the last user goes
        self.found: Logits  # of the step that was planned last; a repeated one's take their place
        self.submitted: deque[Request] = deque()
        self.jobs: deque[Callable[[], None]] = deque()  # to be done between steps; none raises
        self.n_steps = 0
        self.n_shares = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would find anything to do."""
        return bool(self.submitted or self.jobs) or self.scheduler.has_work

    @property
    def due_s(self) -> float | None:
        """When a step would find something to do that can wait, by `time.perf_counter`."""
        return self.upkeep.due_s

    def usage(self) -> Usage:
        """May be called by any thread; its numbers may be a step apart."""
        scheduler = self.scheduler
        groups = tuple(
            GroupUsage(pool.group.window, pool.n_pages, pool.n_held, pool.n_idle)
            for pool in self.pools
        )
        return Usage(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + len(self.submitted),
            groups=groups,
            steps=self.n_steps,
            shares=self.n_shares,
            memory=self._memory(),
            pages_written=self.saved.n_written,
            pages_read=self.saved.n_read,
        )

    def _memory(self) -> MemoryUsage:
        sizes = self.model.sizes
        taken = sum(len(pool.used) * pool.group.page_bytes for pool in self.pools)
        return MemoryUsage(
            weights=sizes.weights,
            activations=sizes.activations,
            kv=sizes.kv,
            kv_taken=taken,
            process=resident_bytes(),
            given_back=self.relief.n_given_back,
            refused=self.relief.n_refused,
        )

    def sequence(self) -> Sequence:
        """A new and empty sequence."""
        return Sequence(self.pools)

    def submit(self, request: Request) -> None:
        """Queues a request, whose prompt must be one token or more and shorter than the context."""
        self.submitted.append(request)

    def step(self) -> list[Delta]:
        """Runs the model once, if there is anything to run; what that brought, and to whom.

        Raises what the model raises; `fail` must follow then.
        """
        scheduler = self.scheduler
        while self.submitted:
            scheduler.waiting.append(self.submitted.popleft())
        if self.jobs:
            self._do_jobs()
        now_s = time.perf_counter()
        if now_s >= self.relief.calm_until_s:
            self.relief.tend(now_s)
        if ended := scheduler.reap(now_s):
            return ended
        tokens = scheduler.repeat()
        batch = None if tokens else scheduler.next_batch()
        if not scheduler.shares:
            if not scheduler.has_work:
                self.upkeep.tend(now_s)
            return []
        if self.upkeep.resting or self.upkeep.todo:
            self.upkeep.tend_beside(now_s)
        self.n_steps += 1
        self.n_shares += len(scheduler.shares)
        if batch is None:
            self.model.run_again(tokens)
        else:
            self._run(batch)
        answers: list[list[int] | Exception] = []
        for share in scheduler.shares:
            try:
                answers.append(share.request.read(self.found, share.rows))
            except SatchelError as error:  # one request's trouble is not its neighbours'
                answers.append(error)
        return scheduler.advance(answers)

    def fail(self, error: Exception) -> list[Delta]:
        """Ends the requests of the step that raised `error`; other requests go on."""
        return self.scheduler.fail(error)

    def end(self, error: Exception) -> list[Delta]:
        """Ends all requests, and does what else is to be done."""
        self._do_jobs()
        self.scheduler.waiting += self.submitted
        self.submitted.clear()
        self.scheduler.shares = []
        return self.scheduler.fail(error)

    def spill_idle(self, n_pages: int) -> int:
        """Frees so many pages that no request holds, or all of them; how many.

        They are written to disk first where that is worth it. Between two steps, see `Driver.do`.
        """
        before = sum(pool.n_free for pool in self.pools)
        for group in range(len(self.pools)):
            while sum(pool.n_free for pool in self.pools) < before + n_pages:
                if not self.tree.evict(group):
                    break
        return sum(pool.n_free for pool in self.pools) - before

    def idle_pages(self) -> int:
        """How many pages no request uses."""
        return sum(pool.n_idle for pool in self.pools)

    def give_back(self) -> int:
        """Gives the memory of free pages back to the system; its bytes. Between two steps, see
        `Driver.do`.
        """
        n_bytes = 0
        for group, pool in enumerate(self.pools):
            if pages := pool.give_back():
                self.model.discard_pages(group, pages)
                n_bytes += len(pages) * pool.group.page_bytes
        return n_bytes

    def _run(self, batch: Batch) -> None:
        """A step that was planned."""
        begun_s = time.perf_counter()
        logits = self.model.run(batch)
        self.scheduler.note_time(time.perf_counter() - begun_s)
        self.found = Logits(logits, self.model.maxima, self.model.ranked)
        _read_states(self.scheduler.shares, self.model)

    def _do_jobs(self) -> None:
        while self.jobs:
            self.jobs.popleft()()


def _read_states(shares: list[Share], model: Model) -> None:
    """Gives those who embed the states of their tokens."""
    at = 0
    for share in shares:
        if n := share.n_embedded:
            share.request.read_states(model.states[at : at + n])
            at += n
