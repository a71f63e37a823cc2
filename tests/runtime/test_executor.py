"""The executor: every tile once, phases in order, for any number of threads; and good manners."""

from __future__ import annotations

import gc
import os
import re
import struct
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.base.errors import KernelError, MemoryLimitError, OptionError
from satchel.runtime.executor import MAX_TILES, Executor, _Tables  # pyright: ignore[reportPrivateUsage]
from satchel.runtime.memory import Memory
from satchel.runtime.plan import Buffer, Count, Float, Int, Plan, Ref, Scalar, Step

from .kernels import counting_plan, linked, plan_of

THREADS = (1, 2, 3, 4, 9)


def bind(plan: Plan, threads: int) -> tuple[Executor, Memory]:
    """An executor, and the memory of the plan's arena."""
    memory = Memory(plan.bytes_of("arena"))
    return Executor(plan, linked(), {"arena": memory.address}, threads), memory


@pytest.mark.parametrize("threads", THREADS)
def test_each_tile_is_claimed_once(threads: int) -> None:
    plan = counting_plan([[5], [1, 1, 7], [0], [100], [1, 0, 3], [1000]])
    executor, memory = bind(plan, threads)
    with executor:
        for _ in range(2000):
            executor.run({})
    counts = memory.array("i8", plan.bytes_of("arena") // 8)
    assert counts.min() == counts.max() == 2000


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=4), max_size=8),
    st.sampled_from(THREADS),
    st.integers(1, 30),
)
def test_any_plan(tiles: list[list[int]], threads: int, runs: int) -> None:
    plan = counting_plan(tiles)
    executor, memory = bind(plan, threads)
    with executor:
        for _ in range(runs):
            executor.run({})
    counts = memory.array("i8", plan.bytes_of("arena") // 8)
    assert (counts == runs).all()


@pytest.mark.parametrize("threads", THREADS)
def test_a_phase_sees_all_that_came_before(threads: int) -> None:
    """Each phase writes n sums over the n values of the one before: x -> n * x, n^p at the end."""
    n, phases = 7, 12
    steps = [
        Step("sum", (Ref("a", 8 * n * (p + 1)), Ref("a", 8 * n * p), Int(n)), Count(n), p)
        for p in range(phases)
    ]
    plan = plan_of(steps, [Buffer("a", 8 * n * (phases + 1), "arena")])
    executor, memory = bind(plan, threads)
    values = memory.array("i8", n * (phases + 1))
    with executor:
        for first in range(1, 500):
            values[:] = -1
            values[:n] = first
            executor.run({})
            assert (values.reshape(-1, n)[:, 0] == first * n ** np.arange(phases + 1)).all()
            assert (values.reshape(-1, n) == values.reshape(-1, n)[:, :1]).all()


def test_arguments() -> None:
    args = (Ref("a", 0), Float(0.1), Float(0.1, 64), Scalar("tokens"), Int(-5))
    plan = plan_of([Step("echo", args, Count(1), 3)], [Buffer("a", 32, "arena")], ("tokens",))
    executor, memory = bind(plan, 2)
    with executor:
        given = {"tokens": 4}
        for scalars in (given, given, {"tokens": 3}, given, {"tokens": -(1 << 62)}):
            executor.run(scalars)
            tokens = scalars["tokens"]
            expected = struct.pack("<f4xdqq", 0.1, 0.1, tokens, -5)
            assert memory.array("u1", 32).tobytes() == expected


@pytest.mark.parametrize("threads", [1, 3])
def test_tiles_follow_scalars(threads: int) -> None:
    steps = [
        Step("count", (Ref("a"),), Count(2, "tokens"), 0),
        Step("count", (Ref("a"),), Count(1, "wanted"), 1),
    ]
    plan = plan_of(steps, [Buffer("a", 8 * 64, "arena")], ("tokens", "wanted"))
    executor, memory = bind(plan, threads)
    expected = np.zeros(64, np.int64)
    with executor:
        for i in range(300):
            tokens, wanted = i % 33, i % 5
            executor.run({"tokens": tokens, "wanted": wanted})
            expected[: 2 * tokens] += 1
            expected[:wanted] += 1
            assert (memory.array("i8", 64) == expected).all()


@pytest.mark.parametrize(
    ("scalars", "says"),
    [
        ({}, "scalars"),
        ({"tokens": 1, "other": 2}, "scalars"),
        ({"tokens": -1}, "takes 0 to"),
        ({"tokens": MAX_TILES}, "takes 0 to"),
        ({"tokens": 1 << 70}, "takes 0 to"),
    ],
)
def test_bad_scalars(scalars: dict[str, int], says: str) -> None:
    plan = plan_of([Step("empty", (), Count(2, "tokens"), 0)], (), ("tokens",))
    with Executor(plan, linked(), {}, 1) as executor:
        with pytest.raises(KernelError, match=says):
            executor.run(scalars)
        executor.run({"tokens": 3})


def test_a_scalar_beyond_64_bits() -> None:
    plan = plan_of([Step("empty", (Scalar("n"),), Count(2), 0)], (), ("n",))
    with Executor(plan, linked(), {}, 1) as executor, pytest.raises(KernelError, match="64 bits"):
        executor.run({"n": 1 << 63})


def test_what_can_not_be_bound() -> None:
    plan = plan_of([Step("count", (Ref("a"),), Count(1), 0)], [Buffer("a", 8, "arena")])
    with pytest.raises(KernelError, match="no memory"):
        Executor(plan, linked(), {}, 1)
    with pytest.raises(KernelError, match="not linked"):
        Executor(plan, {}, {"a": 0}, 1)
    for threads in (0, -1, 5000):
        with pytest.raises(OptionError, match="threads"):
            Executor(plan, linked(), {"a": 0}, threads)
    with pytest.raises(KernelError, match="tiles"):
        Executor(plan_of([Step("empty", (), Count(1 << 32), 0)]), linked(), {}, 1)


def workers() -> list[threading.Thread]:
    """The threads of executors; others of ours may live on."""
    return [t for t in threading.enumerate() if re.fullmatch(r"satchel-\d+", t.name)]


def test_closed() -> None:
    executor = Executor(plan_of([]), linked(), {}, 3)
    executor.run({})
    executor.close()
    executor.close()
    with pytest.raises(KernelError, match="closed"):
        executor.run({})
    assert not workers()


@pytest.mark.slow
def test_forgotten_executors_leave_no_threads() -> None:
    executor = Executor(plan_of([]), linked(), {}, 3)
    gone = weakref.ref(executor)
    del executor
    gc.collect()
    assert gone() is None
    assert not workers()


def test_runs_from_many_threads() -> None:
    plan = counting_plan([[3, 4], [9]])
    executor, memory = bind(plan, 2)
    with executor:
        callers = [
            threading.Thread(target=lambda: [executor.run({}) for _ in range(300)])
            for _ in range(4)
        ]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert (memory.array("i8", 16) == 1200).all()


def test_runs_after_pauses_of_any_length() -> None:
    """Workers asleep, about to sleep, and awake: around the idle spin no wake-up is lost."""
    plan = counting_plan([[50], [50]])
    executor, memory = bind(plan, 3)
    with executor:
        for i in range(1500):
            end = time.perf_counter() + (i % 300) * 1e-6
            while time.perf_counter() < end:
                pass
            executor.run({})
    assert (memory.array("i8", 100) == 1500).all()


def test_waiters_sleep_and_wake() -> None:
    """Tiles much longer than the spin: those who wait for them sleep in the kernel."""
    spins = [Step("spin", (Int(3_000_000),), Count(1), p) for p in range(10)]
    counts = [Step("count", (Ref("a"),), Count(5), 10)]
    plan = plan_of(spins + counts, [Buffer("a", 40, "arena")])
    executor, memory = bind(plan, 3)
    with executor:
        executor.run({})
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(20):
            executor.run({})
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    assert (memory.array("i8", 5) == 21).all()
    assert cpu < 1.5 * wall  # three that spin would burn three times, or all that there is


@pytest.mark.slow
def test_idle_costs_nothing() -> None:
    executor, memory = bind(counting_plan([[100]] * 5), 4)
    with executor, memory:
        for _ in range(100):
            executor.run({})
        took: list[float] = []
        while len(took) < 5 and (not took or took[-1] >= 0.005):  # who is late may spin late
            before = time.process_time()
            time.sleep(1)
            took.append(time.process_time() - before)
    assert took[-1] < 0.005, took


def test_epochs_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 2**32 runs all goes on; 0, the epoch of fresh tables, is left out."""
    plan = counting_plan([[3], [0], [20, 1]])
    reset = _Tables.reset

    def near_the_end(tables: _Tables) -> None:
        reset(tables)
        tables.control["epoch"] = -3

    monkeypatch.setattr(_Tables, "reset", near_the_end)
    executor, memory = bind(plan, 3)
    with executor:
        for _ in range(8):
            executor.run({})
    assert (memory.array("i8", 24) == 8).all()


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_profile(threads: int) -> None:
    plan = plan_of([Step("spin", (Int(20_000),), Count(8), p) for p in range(4)])
    with Executor(plan, linked(), {}, threads) as executor:
        assert executor.run({}) is None
        for _ in range(20):
            profile = executor.run({}, profile=True)
            assert profile is not None
            assert profile.tiles.shape == profile.begin_ns.shape == (threads, 4)
            assert (profile.tiles.sum(0) == 8).all()
            used = profile.tiles > 0
            assert (profile.end_ns >= profile.begin_ns).all()
            assert (profile.end_ns[used] > profile.begin_ns[used]).all()
            assert profile.end_ns.max() <= profile.run_ns
            ends = np.where(used, profile.end_ns, 0).max(0)
            begins = np.where(used, profile.begin_ns, np.inf).min(0)
            skew = 1000  # ns: cores read their clocks a little apart, and out of order
            assert (begins[1:] >= ends[:-1] - skew).all()  # phases do not overlap


@pytest.mark.parametrize("threads", [1, 3])
def test_a_forked_child_runs(threads: int) -> None:
    plan = counting_plan([[30], [2, 2]])
    executor, memory = bind(plan, threads)
    counts = memory.array("i8", 34)
    with executor:
        executor.run({})
        child = os.fork()
        if child == 0:
            status = 1
            try:
                for _ in range(100):
                    executor.run({})
                executor.close()
                status = 0 if (counts == 101).all() else 2
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        executor.run({})
    assert (counts == 2).all()  # the child's memory is its own


def test_a_child_forked_during_a_run_can_run() -> None:
    """The fork finds the lock taken and workers busy; the child starts afresh."""
    spins = [Step("spin", (Int(2_000_000),), Count(8), 0)]
    plan = plan_of([*spins, Step("count", (Ref("a"),), Count(5), 1)], [Buffer("a", 40, "arena")])
    executor, memory = bind(plan, 2)
    with executor:
        busy = threading.Thread(target=lambda: executor.run({}))
        busy.start()
        while not executor._lock.locked() and busy.is_alive():  # pyright: ignore[reportPrivateUsage]
            pass
        child = os.fork()
        if child == 0:
            status = 1
            try:
                executor.run({})
                status = 0 if memory.array("i8", 5).min() >= 1 else 2
                executor.close()
                executor.close()
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        busy.join()


def test_python_ends_while_workers_wait() -> None:
    """An executor that no one closes, with workers spinning or asleep, is no reason to crash."""
    source = (
        "import time\n"
        "from kernels import counting_plan, linked, plan_of\n"
        "from satchel.runtime.executor import Executor\n"
        "executor = Executor(plan_of([]), linked(), {}, 4)\n"
        "executor.run({})\n"
        "print('end')\n"
    )
    folder = str(Path(__file__).parent)
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([folder, *sys.path])},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


@pytest.mark.slow
def test_busy_neighbours() -> None:
    """With another program on each CPU a run takes its turn: no thread spins while one is out."""
    plan = plan_of([Step("spin", (Int(300),), Count(36), p) for p in range(200)])
    spinner = [sys.executable, "-c", "while True: pass"]
    ratios: list[float] = []
    with Executor(plan, linked(), {}, min(4, os.cpu_count() or 1)) as executor:
        while len(ratios) < 3 and (not ratios or ratios[-1] <= 0.15):  # others may be busy too
            alone = runs_per_second(executor)
            neighbours = [subprocess.Popen(spinner) for _ in range(os.cpu_count() or 1)]
            try:
                time.sleep(0.3)
                ratios.append(runs_per_second(executor) / alone)
            finally:
                for neighbour in neighbours:
                    neighbour.kill()
                    neighbour.wait()
    assert ratios[-1] > 0.15, ratios  # half is fair; a spin barrier gets a twentieth


def runs_per_second(executor: Executor) -> float:
    runs, start = 0, time.perf_counter()
    while time.perf_counter() - start < 1:
        executor.run({})
        runs += 1
    return runs / (time.perf_counter() - start)


def test_overhead_of_a_run() -> None:
    """Python's share of a run is below 20 us (it is about 2), whatever the plan: where others work
    too, the quicker runs tell.
    """
    with Executor(plan_of([]), linked(), {}, 1) as executor:
        times: list[float] = []
        for _ in range(200):
            start = time.perf_counter()
            executor.run({})
            times.append(time.perf_counter() - start)
    assert sorted(times)[20] < 20e-6


@pytest.mark.parametrize("n_begun", [0, 1])
def test_no_room_for_all_workers(n_begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have begun go home."""
    before, begin, begun = threading.active_count(), threading.Thread.start, 0

    def fails(thread: threading.Thread) -> None:
        nonlocal begun
        if begun == n_begun:
            raise RuntimeError("can't start new thread")
        begun += 1
        begin(thread)

    plan = counting_plan([[3]])
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fails)
        with pytest.raises(MemoryLimitError, match="one more thread"):
            bind(plan, 3)
    assert begun == n_begun
    assert threading.active_count() == before
    executor, memory = bind(plan, 3)
    with executor:
        executor.run({})
    assert (memory.array("i8", plan.bytes_of("arena") // 8) == 1).all()
