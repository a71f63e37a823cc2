"""Where workers run and where memory lies, on machines of unequal cores or several NUMA nodes.

On all others the system chooses: a worker that is bound to one core waits there for whatever else
runs on it. So nowhere is a worker bound to a core, only to a kind: to the fast cores of a hybrid,
or to those of one node. The caller's own thread is never bound, as its children would inherit that.

Memory is spread over the nodes page by page, so that all memory controllers serve all cores. The
policy holds for pages of files, too: the packed weights are read into memory under it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from satchel.machine import Core, Machine, this_machine
from satchel.runtime.devices import cpu

DEFAULT_POLICY, INTERLEAVE = 0, 3  # MPOL_DEFAULT, MPOL_INTERLEAVE of linux/mempolicy.h
_MASK_BITS = 64


@dataclass(frozen=True)
class Placement:
    """For each worker the logical CPUs that it keeps to, none for any; the nodes that memory is
    spread over, none for the system's own way.
    """

    cpus: tuple[frozenset[int], ...]
    nodes: tuple[int, ...] = ()


def place(machine: Machine, threads: int) -> Placement:
    """Where so many workers belong. Worker 0 is the caller, and free."""
    pool = machine.fast_cores if threads <= len(machine.fast_cores) else machine.allowed_cores
    anywhere = Placement((frozenset[int](),) * threads)
    if machine.system != "linux" or not pool:
        return anywhere
    nodes = tuple(sorted({core.node for core in pool}))
    if len(nodes) == 1:
        if len(pool) == len(machine.allowed_cores):
            return anywhere
        return Placement((frozenset[int](), *[_cpus(machine, pool)] * (threads - 1)))
    by_node = {node: [core for core in pool if core.node == node] for node in nodes}
    # the nodes in turn, each as often as it has cores
    seats = sorted((rank, node) for node in nodes for rank in range(len(by_node[node])))
    owners = [seats[worker % len(seats)][1] for worker in range(1, threads)]
    cpus = {node: _cpus(machine, cores) for node, cores in by_node.items()}
    return Placement((frozenset[int](), *(cpus[node] for node in owners)), nodes)


def _cpus(machine: Machine, cores: Sequence[Core]) -> frozenset[int]:
    return frozenset(cpu for core in cores for cpu in core.cpus) & machine.allowed


def settle(cpus: frozenset[int]) -> None:
    """Keep the calling thread to these CPUs, as far as it may use them and the system allows."""
    if cpus and hasattr(os, "sched_setaffinity"):
        with contextlib.suppress(OSError):  # a sandbox that forbids it: the system chooses
            if mine := cpus & os.sched_getaffinity(0):
                os.sched_setaffinity(0, mine)


@contextmanager
def spread_memory(nodes: Sequence[int]) -> Generator[bool]:
    """What this thread touches first meanwhile, and threads that it starts, is spread over nodes.

    Does nothing without nodes, where the system refuses, or where a policy was already chosen for
    this process (by numactl). Gives whether it does anything.
    """
    done = bool(nodes) and policy() == DEFAULT_POLICY and _set_policy(INTERLEAVE, nodes)
    try:
        yield done
    finally:
        if done:
            _set_policy(DEFAULT_POLICY, ())


def policy() -> int | None:
    """The number of this thread's memory policy; None where the system does not tell."""
    mode = ctypes.c_int(-1)
    isa = cpu.ISAS.get(this_machine().isa)
    if this_machine().system != "linux" or isa is None:
        return None
    null, zero = ctypes.c_void_p(None), ctypes.c_ulong(0)
    failed = _syscall(isa.get_policy, ctypes.byref(mode), null, zero, null, zero)
    return None if failed else mode.value


def _set_policy(mode: int, nodes: Sequence[int]) -> bool:
    """Whether the system took the policy for this thread."""
    isa = cpu.ISAS.get(this_machine().isa)
    if isa is None or any(node >= _MASK_BITS for node in nodes):
        return False
    mask = ctypes.c_uint64(sum(1 << node for node in nodes))
    bits = ctypes.c_ulong(_MASK_BITS + 1)  # the kernel reads one bit less
    return _syscall(isa.set_policy, ctypes.c_int(mode), ctypes.byref(mask), bits) == 0


def _syscall(number: int, *args: object) -> int:
    call = ctypes.CDLL(None).syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *args))
