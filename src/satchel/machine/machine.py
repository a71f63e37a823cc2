"""A computer as plain data: what code may run on it, and on how many cores."""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Core:
    """A physical core. `cpus` are its logical ones (two where it runs two threads)."""

    cpus: tuple[int, ...]
    capacity: int = 1024  # work per time, relative to 1024 for the fastest core
    node: int = 0  # the NUMA node of the memory next to it


@dataclass(frozen=True)
class Cache:
    """One cache for data, shared by `n_cpus` logical CPUs."""

    level: int
    bytes: int
    n_cpus: int = 1
    line_bytes: int = 64


@dataclass(frozen=True)
class Machine:
    """What this process may use of a computer.

    `quota` is the time it may use, in CPUs, where a container limits it; `memory_bytes` is the
    physical memory, or less where a container has a limit; `caches` are those of a fast core.
    """

    isa: str  # "x86_64", "aarch64" or "riscv64", or what the system calls another
    system: str  # sys.platform
    name: str  # as the maker calls it
    cores: tuple[Core, ...]
    allowed: frozenset[int]  # logical CPUs that this process may run on
    quota: float | None
    caches: tuple[Cache, ...]
    memory_bytes: int
    page_bytes: int
    given_features: frozenset[str] | None = None  # None: LLVM knows
    given_cpu: str | None = None

    @cached_property
    def features(self) -> frozenset[str]:
        """The instruction set extensions that processor and system have, by LLVM's names.

        Imports llvmlite where the system does not tell.
        """
        if self.given_features is not None:
            return self.given_features
        llvm: Any = importlib.import_module("llvmlite.binding")
        try:
            found: dict[str, bool] = llvm.get_host_cpu_features()
        except RuntimeError:  # LLVM can't ask this processor: the least it can be
            return frozenset()
        return frozenset(name for name, has in found.items() if has)

    @cached_property
    def cpu(self) -> str:
        """LLVM's name of the processor, like "znver4" or "cortex-a76". Imports llvmlite."""
        if self.given_cpu is not None:
            return self.given_cpu
        llvm: Any = importlib.import_module("llvmlite.binding")
        return str(llvm.get_host_cpu_name())

    @property
    def n_cpus(self) -> int:
        """Logical CPUs."""
        return sum(len(core.cpus) for core in self.cores)

    @property
    def n_nodes(self) -> int:
        """NUMA nodes that have cores."""
        return len({core.node for core in self.cores})

    @property
    def allowed_cores(self) -> tuple[Core, ...]:
        """Cores of which at least one CPU may be used."""
        return tuple(core for core in self.cores if self.allowed.intersection(core.cpus))

    @property
    def fast_cores(self) -> tuple[Core, ...]:
        """Allowed cores of at least half the speed of the fastest of them.

        Slower ones gain little: they share the memory, and a phase waits for its last tile.
        """
        fastest = max((core.capacity for core in self.allowed_cores), default=0)
        return tuple(core for core in self.allowed_cores if 2 * core.capacity >= fastest)

    @property
    def default_threads(self) -> int:
        """One for each fast core, but no more than the time that the process is given."""
        n = len(self.fast_cores)
        if self.quota is not None:
            n = min(n, math.ceil(self.quota))
        return max(1, n)

    def cache_bytes(self, level: int) -> int:
        """The bytes of a core's data cache of a level; 0 when it has none, or no one knows."""
        return max((cache.bytes for cache in self.caches if cache.level == level), default=0)
