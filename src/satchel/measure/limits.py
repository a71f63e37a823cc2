"""What this machine can do right now: bytes read and multiply-adds done, a second."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType

from satchel.base.options import options
from satchel.compiler.model import host_target
from satchel.compiler.pipeline import object_request
from satchel.kernels.limits import CHAINS, DOTS, multiply_all, multiply_floats, read_all
from satchel.lang.kernel import Kernel
from satchel.runtime.executor import Executor
from satchel.runtime.link import link_all
from satchel.runtime.memory import Memory
from satchel.runtime.objects import ObjectCache, build_objects
from satchel.runtime.plan import Buffer, Count, Int, Plan, Ref, Step

READ_BYTES = 512 << 20
"""More than any cache holds."""

CACHE_BYTES = 8 << 20
"""More than the cores' own caches hold, less than the shared one has."""

CACHE_ROUNDS = 16
TILE_BYTES = 256 << 10
ROUNDS = 1_000_000


@dataclass(frozen=True)
class MeasuredLimits:
    """Of so many threads together: bytes a second from memory, multiply-adds of 8 bits a second."""

    threads: int
    read_bytes_per_s: float
    mads_per_s: float


class LimitMeter:
    """Measures again and again, so that a benchmark can interleave it with what it times."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._cache = ObjectCache(options().cache_dir)
        n_out = max(READ_BYTES // TILE_BYTES, threads)
        self._memory = {"x": Memory(READ_BYTES), "out": Memory(64 * n_out)}
        # every page is touched, so that it is memory of its own
        self._memory["x"].array("u8", READ_BYTES // 8)[::64] = 1
        self._code: list[Mapping[str, int]] = []
        self._reader = self._executor(read_all, READ_BYTES // TILE_BYTES, TILE_BYTES)
        self._cached = self._executor(read_all, CACHE_BYTES // TILE_BYTES, TILE_BYTES)
        self._multiplier = self._executor(multiply_all, threads, ROUNDS)
        self._floats = self._executor(multiply_floats, threads, ROUNDS)

    def _executor(self, kernel: Kernel, tiles: int, last: int) -> Executor:
        """One step that runs the kernel over its tiles."""
        build = kernel.build(host_target(options().target))
        request = object_request(build)
        kernels = {build.name: request.key}
        code = link_all(build_objects([request], self._cache, os.cpu_count() or 1), kernels)
        self._code.append(code)
        buffers = tuple(Buffer(name, m.n_bytes, "scratch") for name, m in self._memory.items())
        step = Step(build.name, (Ref("out"), Ref("x"), Int(last)), Count(tiles), 0)
        places = {name: memory.address for name, memory in self._memory.items()}
        plan = Plan((step,), buffers, (), kernels)
        return Executor(plan, code, places, self.threads, self._cache)

    def read_bytes_per_s(self) -> float:
        """From memory that no cache holds."""
        return READ_BYTES / seconds_of(self._reader)

    def cache_bytes_per_s(self) -> float:
        """From the shared cache, where there is one; it has just been read."""
        seconds_of(self._cached)
        return CACHE_BYTES * CACHE_ROUNDS / sum(
            seconds_of(self._cached) for _ in range(CACHE_ROUNDS)
        )  # fmt: skip

    def mads_per_s(self) -> float:
        """Multiply-adds of 8-bit codes, from registers."""
        return self.threads * ROUNDS * CHAINS * DOTS / seconds_of(self._multiplier)

    def float_mads_per_s(self) -> float:
        """Multiply-adds of f32, from registers."""
        return self.threads * ROUNDS * CHAINS * 16 / seconds_of(self._floats)

    def best(self, times: int = 3) -> MeasuredLimits:
        """The best of several measurements, which is what the machine can do."""
        return MeasuredLimits(
            self.threads,
            max(self.read_bytes_per_s() for _ in range(times)),
            max(self.mads_per_s() for _ in range(times)),
        )

    def close(self) -> None:
        """Send the workers home."""
        for executor in (self._reader, self._cached, self._multiplier, self._floats):
            executor.close()

    def __enter__(self) -> LimitMeter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def seconds_of(executor: Executor) -> float:
    """How long one run takes."""
    begin = time.perf_counter()
    executor.run({})
    return time.perf_counter() - begin


def measure_limits(threads: int) -> MeasuredLimits:
    """Both limits of `threads` threads; takes about half a second."""
    with LimitMeter(threads) as meter:
        return meter.best()
