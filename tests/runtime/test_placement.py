"""Where workers and memory belong on machines that no one here has; system calls on this one."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.machine import Core, Machine
from satchel.machine.fakes import HYBRID_LAPTOP, SMALL_BOARD, TWO_SOCKETS
from satchel.runtime.executor import Executor
from satchel.runtime.memory import Memory
from satchel.runtime.placement import (
    DEFAULT_POLICY,
    INTERLEAVE,
    Placement,
    place,
    policy,
    settle,
    spread_memory,
)

from .kernels import counting_plan, linked

MACHINES = [HYBRID_LAPTOP, SMALL_BOARD, TWO_SOCKETS]
ANY = frozenset[int]()


def test_a_hybrid_laptop() -> None:
    """Slow cores are left out; a worker may run on any fast one."""
    assert HYBRID_LAPTOP.default_threads == 6
    assert place(HYBRID_LAPTOP, 6) == Placement((ANY, *[frozenset(range(12))] * 5))
    # who asks for more threads than there are fast cores, gets all cores
    assert place(HYBRID_LAPTOP, 14) == Placement((ANY,) * 14)


def test_a_board_of_small_and_big_cores() -> None:
    assert SMALL_BOARD.default_threads == 4
    assert place(SMALL_BOARD, 4) == Placement((ANY, *[frozenset({4, 5, 6, 7})] * 3))
    assert place(SMALL_BOARD, 2) == Placement((ANY, frozenset({4, 5, 6, 7})))
    assert place(SMALL_BOARD, 8) == Placement((ANY,) * 8)


def test_two_sockets() -> None:
    """Workers on both nodes, as many on each; memory is spread over both."""
    first = frozenset([*range(32), *range(64, 96)])
    second = frozenset([*range(32, 64), *range(96, 128)])
    placed = place(TWO_SOCKETS, 64)
    assert placed.nodes == (0, 1)
    assert (placed.cpus.count(first), placed.cpus.count(second)) == (31, 32)
    assert place(TWO_SOCKETS, 4).cpus == (ANY, second, first, second)


def test_a_program_that_was_given_part_of_a_machine() -> None:
    """taskset and numactl decide; within what they leave there is nothing to choose."""
    one_node = replace(TWO_SOCKETS, allowed=frozenset(range(32)))
    assert place(one_node, 32) == Placement((ANY,) * 32)
    slow_only = replace(SMALL_BOARD, allowed=frozenset({0, 1}))
    assert place(slow_only, 2) == Placement((ANY,) * 2)
    mixed = replace(SMALL_BOARD, allowed=frozenset({0, 6, 7}))
    assert place(mixed, 2).cpus == (ANY, frozenset({6, 7}))


def test_uneven_nodes() -> None:
    cores = tuple(Core((i,), node=int(i >= 6)) for i in range(8))
    machine = replace(TWO_SOCKETS, cores=cores, allowed=frozenset(range(8)))
    assert place(machine, 8).cpus.count(frozenset({6, 7})) == 2


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_choose_themselves(system: str) -> None:
    assert place(replace(TWO_SOCKETS, system=system), 8) == Placement((ANY,) * 8)


@given(st.sampled_from(MACHINES), st.data())
def test_a_place_is_one_that_is_allowed(machine: Machine, data: st.DataObject) -> None:
    cpus = sorted(cpu for core in machine.cores for cpu in core.cpus)
    allowed = data.draw(st.frozensets(st.sampled_from(cpus), min_size=1))
    threads = data.draw(st.integers(1, 200))
    placed = place(replace(machine, allowed=allowed), threads)
    assert len(placed.cpus) == threads
    assert placed.cpus[0] == ANY
    assert all(mine <= allowed for mine in placed.cpus)
    assert set(placed.nodes) <= {core.node for core in machine.cores}
    assert len(placed.nodes) != 1


# ---- on this machine


def in_thread(cpus: frozenset[int]) -> set[int]:
    """The CPUs that a thread may use after it went to its place."""
    found: list[set[int]] = []

    def live() -> None:
        settle(cpus)
        found.append(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(cpus))

    thread = threading.Thread(target=live)
    thread.start()
    thread.join()
    return found[0]


def test_a_thread_settles_and_no_other() -> None:
    mine = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    one = min(mine)
    assert in_thread(frozenset({one, 100_000})) == {one}
    if hasattr(os, "sched_getaffinity"):
        assert in_thread(frozenset({100_000})) == mine  # none of these is there
        assert in_thread(ANY) == mine
        assert os.sched_getaffinity(0) == mine


def test_memory_is_spread_and_back() -> None:
    """On one node this does nothing that anyone could see; where it is refused, nothing at all."""
    before = policy()
    with spread_memory((0,)) as done:
        assert policy() == (INTERLEAVE if done else before)
        inherited: list[int | None] = []
        thread = threading.Thread(target=lambda: inherited.append(policy()))
        thread.start()
        thread.join()
        assert inherited == [policy()]
        with spread_memory((0,)) as again:
            assert not again  # a policy that was chosen stays
        assert policy() == (INTERLEAVE if done else before)
        Memory(1 << 20).array("u1", 1 << 20)[:] = 1
    assert policy() == before
    with spread_memory(()) as done:
        assert not done
    with spread_memory((5000,)) as done:
        assert not done
    if not sys.platform.startswith("linux"):
        assert before is None
    else:
        assert before in (None, DEFAULT_POLICY, INTERLEAVE, 1, 2, 4)


def test_a_placed_executor_computes_the_same() -> None:
    plan = counting_plan([[50], [7, 1]])
    cpus = frozenset({0, 1, 2, 3})
    for placement in (Placement((ANY, cpus, cpus), (0,)), Placement((ANY,) * 3)):
        memory = Memory(plan.bytes_of("arena"))
        place_of = {"arena": memory.address}
        with Executor(plan, linked(), place_of, 3, placement=placement) as executor:
            for _ in range(50):
                executor.run({})
        counts = memory.array("i8", plan.bytes_of("arena") // 8)
        assert (counts == 50).all()
