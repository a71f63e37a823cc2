"""The executor: a plan bound to addresses, and the worker threads that run it."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from satchel.base.errors import KernelError, MemoryLimitError, OptionError
from satchel.base.threads import start
from satchel.machine import this_machine
from satchel.runtime.memory import Memory, align
from satchel.runtime.objects import ObjectCache
from satchel.runtime.placement import Placement, place, settle, spread_memory
from satchel.runtime.plan import Arg, Float, Int, Plan, Ref, Scalar
from satchel.runtime.workers import (
    CONTROL,
    PATCH,
    PHASE,
    SPAN,
    STEP,
    Layout,
    Native,
    native,
    size,
)

if TYPE_CHECKING:
    import numpy as np

MAX_THREADS: Final = 1024
MAX_TILES: Final = (1 << 32) - 1  # of one step in one run; a claim is half a word
IDLE_SPIN_US: Final = 80  # how long workers stay awake after a run, as the next one is near
WAIT_SPIN_US: Final = 30  # how long they stay awake within a run, for tiles that others compute
SHARES: Final = 2  # a claim takes 1 / (SHARES * threads) of the tiles that are left

_executors: weakref.WeakSet[Executor] = weakref.WeakSet()  # all there are


def _note_fork() -> None:
    """In a forked child; to ask for the process at each run would take longer."""
    for executor in _executors:
        executor.is_forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


@dataclass(frozen=True)
class Profile:
    """What each thread did in one run: float64 or int64 arrays of [threads, steps].

    Times are ns since the run began; a thread that claimed no tile of a step has 0 in all three.
    """

    begin_ns: np.ndarray[Any, Any]
    end_ns: np.ndarray[Any, Any]
    tiles: np.ndarray[Any, Any]
    run_ns: float


class Executor:
    """Runs `plan` with `threads` threads, the caller's among them.

    `link` has the address of each kernel; `memory` that of each buffer by its name, or else that of
    the memory which holds all buffers of its kind. Whoever gives addresses keeps what lies there
    until the executor is closed. `placement` says where the workers run, by default what fits this
    machine. Raises KernelError for a plan that is not sound or lacks an
    address, OptionError for an absurd number of threads.
    """

    def __init__(
        self,
        plan: Plan,
        link: Mapping[str, int],
        memory: Mapping[str, int],
        threads: int,
        cache: ObjectCache | None = None,
        placement: Placement | None = None,
    ) -> None:
        if not 1 <= threads <= MAX_THREADS:
            raise OptionError(f"{threads} threads; use 1 to {MAX_THREADS}")
        self.plan = plan.check()
        self.threads = threads
        self.placement = placement or place(this_machine(), threads)
        self.native = native(cache or ObjectCache(None))
        self._tables = _Tables(plan, link, addresses(plan, memory), threads, self.native)
        self._limits = _tile_limits(plan)
        self._given: Mapping[str, int] | None = None
        self._crew: _Crew | None = None
        _executors.add(self)
        self._muster()

    def run(self, scalars: Mapping[str, int], profile: bool = False) -> Profile | None:
        """Run all steps once; `scalars` has a value for each scalar of the plan, and is not changed
        afterwards: the same mapping is read but once.

        Returns when all is done; with `profile`, what took how long. Runs of several threads come
        one after another. Raises KernelError for scalars that are missing, unknown or out of range.
        """
        if self.is_forked:
            self._begin_anew()
        self._lock.acquire()  # a `with` takes longer, where the caches hold nothing of ours
        try:
            if self._crew is None:
                raise KernelError("the executor is closed")
            tables = self._tables
            given_anew = scalars is not self._given
            if given_anew:
                self._give(scalars)
            if profile:
                return tables.profiled(self.native, self.threads)
            self.native.run(tables.address)
            if given_anew:
                tables.control["n_patches"] = 0  # the scalars are in place
            return None
        finally:
            self._lock.release()

    def close(self) -> None:
        """Send the workers home and give the tables back."""
        if self.is_forked:
            self._begin_anew()
        with self._lock:
            self._crew = None
            self._dismiss()

    def __enter__(self) -> Executor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _muster(self) -> None:
        """Start the workers, on tables as good as new."""
        self.is_forked = False
        self._lock = threading.Lock()
        self._tables.reset()
        self._crew = _Crew(self.native, self._tables, self.placement)
        self._dismiss = weakref.finalize(self, self._crew.dismiss)  # also when Python ends

    def _begin_anew(self) -> None:
        """A forked child has no workers, and a lock that no one may ever release: take new ones."""
        self._dismiss.detach()
        self.is_forked, self._lock = False, threading.Lock()
        if self._crew is not None:
            self._muster()

    def _give(self, scalars: Mapping[str, int]) -> None:
        """Put new scalars where `run` finds them."""
        if set(scalars) != set(self.plan.scalars):
            wants, has = ", ".join(self.plan.scalars), ", ".join(scalars)
            raise KernelError(f"the plan's scalars are ({wants}), but ({has}) were given")
        for name, limit in self._limits.items():
            if not 0 <= scalars[name] <= limit:
                raise KernelError(f"{name} = {scalars[name]}; this plan takes 0 to {limit}")
        tables = self._tables
        try:
            tables.scalars[1:] = [scalars[name] for name in self.plan.scalars]
        except OverflowError as error:
            raise KernelError("a scalar does not fit 64 bits") from error
        tables.control["n_patches"] = tables.n_patches
        self._given = scalars


class _Crew:
    """The workers beside the caller. Each waits in native code, for all its life."""

    def __init__(self, native: Native, tables: _Tables, placement: Placement) -> None:
        self.native, self.tables = native, tables
        seen = int(tables.control["epoch"])
        self.workers = [
            threading.Thread(
                target=_live,
                args=(native, cpus, tables.address, seen, i),
                name=f"satchel-{i}",
                daemon=True,
            )
            for i, cpus in enumerate(placement.cpus)
            if i > 0  # the caller is worker 0
        ]
        begun = 0
        try:
            with spread_memory(placement.nodes):
                for worker in self.workers:
                    start(worker)
                    begun += 1
        except MemoryLimitError:
            del self.workers[begun:]
            self.dismiss()
            raise

    def dismiss(self) -> None:
        """Stop and join all workers; only then may tables and code go."""
        self.native.stop(self.tables.address)
        for worker in self.workers:
            worker.join()


def _live(native: Native, cpus: frozenset[int], control: int, seen: int, worker: int) -> None:
    """What a worker's thread does: go to its place, and stay in the loop until it is stopped."""
    settle(cpus)
    native.attend(control, seen, worker)


class _Tables:
    """A plan in the form that the native loop reads."""

    def __init__(
        self,
        plan: Plan,
        link: Mapping[str, int],
        places: Mapping[str, int],
        threads: int,
        native: Native,
    ) -> None:
        slots, starts = _slots(plan, places)
        groups = _by_phase(plan)
        index = {name: i for i, name in enumerate(plan.scalars, 1)}  # 0 is the number one
        patches = [
            (8 * (start + i), index[arg.name])
            for step, start in zip(plan.steps, starts, strict=True)
            for i, arg in enumerate(step.args)
            if isinstance(arg, Scalar)
        ]
        self.n_steps, self.n_patches = len(plan.steps), len(patches)
        parts = _Parts(len(groups), self.n_steps, len(patches), 1 + len(index), len(slots), threads)
        self.memory = parts.memory
        self.address = parts.memory.address
        self.control = parts.array("control")[0]
        self.phases, self.steps = parts.array("phases"), parts.array("steps")
        self.scalars, self.spans = parts.array("scalars"), parts.array("spans")
        self.scalars[0] = 1
        parts.array("slots")[:] = slots
        if patches:
            table = parts.array("patches")
            table["slot"], table["scalar"] = zip(*patches, strict=True)
            table["slot"] += parts.address("slots")
        if plan.steps:
            self.steps["kernel"] = [_address(link, step.kernel) for step in plan.steps]
            self.steps["args"] = [parts.address("slots") + 8 * start for start in starts]
            self.steps["factor"] = [step.tiles.factor for step in plan.steps]
            self.steps["scalar"] = [index.get(step.tiles.scalar or "", 0) for step in plan.steps]
            ends = [parts.address("steps") + size(STEP) * n for n in itertools.accumulate(groups)]
            self.phases["first"] = [parts.address("steps"), *ends[:-1]]
            self.phases["last"] = ends
        for name, value in {
            "n_phases": len(groups),
            "phases": parts.address("phases"),
            "patches": parts.address("patches"),
            "scalars": parts.address("scalars"),
            "shares": SHARES * threads,
            "idle_spin": int(IDLE_SPIN_US * 1000 * native.ticks_per_ns),
            "wait_spin": int(WAIT_SPIN_US * 1000 * native.ticks_per_ns),
            "steps": parts.address("steps"),
            "n_steps": self.n_steps,
            "sleep_call": native.sleep_call,
            "wake_call": native.wake_call,
        }.items():
            self.control[name] = value

    def reset(self) -> None:
        """Forget all claims and counts, and workers that are no more."""
        self.control["sleepers"] = self.control["stop"] = 0
        for name in ("done", "target", "sleepers"):
            self.phases[name] = 0
        for name in ("claim", "total"):
            self.steps[name] = 0

    def profiled(self, native: Native, threads: int) -> Profile:
        """One run with times."""
        self.spans[:] = 0
        self.control["profile"] = self.spans.ctypes.data
        begin_ns, begin = time.perf_counter_ns(), native.now()
        native.run(self.address)
        end_ns, end = time.perf_counter_ns(), native.now()
        self.control["profile"] = self.control["n_patches"] = 0
        ns = (end_ns - begin_ns) / max(1, end - begin)
        spans = self.spans.reshape(threads, self.n_steps)
        is_used = spans["tiles"] > 0
        return Profile(
            begin_ns=(spans["begin"] - begin) * is_used * ns,
            end_ns=(spans["end"] - begin) * is_used * ns,
            tiles=spans["tiles"].copy(),
            run_ns=float(end_ns - begin_ns),
        )


class _Parts:
    """One memory for all tables, each of which starts a cache line."""

    def __init__(
        self,
        n_phases: int,
        n_steps: int,
        n_patches: int,
        n_scalars: int,
        n_slots: int,
        threads: int,
    ) -> None:
        self._layouts: dict[str, tuple[Any, int, int]] = {}
        end = 0
        for name, dtype, count in (
            ("control", _dtype(CONTROL), 1),
            ("phases", _dtype(PHASE), n_phases),
            ("steps", _dtype(STEP), n_steps),
            ("slots", "u8", n_slots),
            ("scalars", "i8", n_scalars),
            ("patches", _dtype(PATCH), n_patches),
            ("spans", _dtype(SPAN), threads * n_steps),
        ):
            import numpy as np

            self._layouts[name] = (dtype, count, end)
            end = align(end + np.dtype(dtype).itemsize * count, 128)
        self.memory = Memory(end, huge=False)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        return self.memory.array(*self._layouts[name])

    def address(self, name: str) -> int:
        return self.memory.address + self._layouts[name][2]


def addresses(plan: Plan, memory: Mapping[str, int]) -> dict[str, int]:
    """Where each buffer of the plan lies, given the address of each or of all of its kind."""
    places: dict[str, int] = {}
    for buffer in plan.buffers:
        if buffer.name in memory:
            places[buffer.name] = memory[buffer.name]
        elif buffer.kind in memory:
            places[buffer.name] = memory[buffer.kind] + buffer.offset
        else:
            raise KernelError(f"no memory was given for the buffer {buffer.name} ({buffer.kind})")
    return places


def _slots(plan: Plan, places: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """The arguments of all steps as 64-bit words, and where those of each step start."""
    slots: list[int] = []
    starts: list[int] = []
    for step in plan.steps:
        slots += [0] * (-len(slots) % 8)  # each step's in cache lines of their own
        starts.append(len(slots))
        slots += [_word(arg, places) for arg in step.args]
    return slots, starts


def _word(arg: Arg, places: Mapping[str, int]) -> int:
    """The 64 bits that a kernel finds in its slot; a scalar's come later."""
    match arg:
        case Ref(buffer, offset):
            return places[buffer] + offset
        case Int(value):
            return value % (1 << 64)
        case Float():
            return arg.word
        case Scalar():
            return 0


def _address(link: Mapping[str, int], kernel: str) -> int:
    if kernel not in link:
        raise KernelError(f"the kernel {kernel} is not linked")
    return link[kernel]


def _tile_limits(plan: Plan) -> dict[str, int]:
    """The largest value of each scalar that counts tiles."""
    factors: dict[str | None, int] = {}
    for step in plan.steps:
        by = step.tiles.scalar
        factors[by] = max(factors.get(by, 1), step.tiles.factor)
    if factors.pop(None, 0) > MAX_TILES:
        raise KernelError(f"a step has more than {MAX_TILES} tiles")
    return {by: MAX_TILES // factor for by, factor in factors.items() if by is not None}


def _by_phase(plan: Plan) -> list[int]:
    """The number of steps in each phase that has any."""
    return [len(list(steps)) for _, steps in itertools.groupby(plan.steps, lambda s: s.phase)]


def _dtype(layout: Layout) -> np.dtype[Any]:
    import numpy as np

    return np.dtype(
        [(name, code, (count,)) if count > 1 else (name, code) for name, code, count in layout]
    )
