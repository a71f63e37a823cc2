"""What this machine can do right now: bytes read from memory a second, and 8-bit multiply-adds a second."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

from satchel.base.options import options
from satchel.compiler.model import host_target
from satchel.compiler.pipeline import object_request
from satchel.kernels.limits import CHAINS, DOTS, multiply_all, read_all
from satchel.lang.kernel import Build
from satchel.runtime.executor import Executor
from satchel.runtime.link import link_all
from satchel.runtime.memory import Memory
from satchel.runtime.objects import ObjectCache, build_objects
from satchel.runtime.plan import Arg, Buffer, Count, Int, Plan, Ref, Step

READ_BYTES = 512 << 20
TILE_BYTES = 256 << 10
ROUNDS = 200_000


@dataclass(frozen=True)
class MeasuredLimits:
    """Of so many threads together: bytes a second from memory that no cache holds, multiply-adds a second from registers."""

    threads: int
    read_bytes_per_s: float
    mads_per_s: float


class LimitMeter:
    """Measures again and again, so that a benchmark can interleave it with what it times."""

    def __init__(self, threads: int) -> None:
        target, cache = host_target(options().target), ObjectCache(options().cache_dir)
        self.threads = threads
        self._code: list[Mapping[str, int]] = []
        self._memory = {"x": Memory(READ_BYTES), "out": Memory(64 * max(READ_BYTES // TILE_BYTES, threads))}
        self._memory["x"].array("u8", READ_BYTES // 8)[::64] = 1  # touched, so that it is real memory

        def executor(build: Build, tiles: int, *args: Arg) -> Executor:
            request = object_request(build)
            code = link_all(build_objects([request], cache, os.cpu_count() or 1), {build.name: request.key})
            self._code.append(code)
            buffers = tuple(Buffer(name, m.n_bytes, "scratch") for name, m in self._memory.items())
            step = Step(build.name, (Ref("out"), Ref("x"), *args), Count(tiles), 0)
            plan = Plan((step,), buffers, (), {build.name: request.key})
            return Executor(plan, code, {n: m.address for n, m in self._memory.items()}, threads, cache)

        self._reader = executor(read_all.build(target), READ_BYTES // TILE_BYTES, Int(TILE_BYTES))
        self._multiplier = executor(multiply_all.build(target), threads, Int(ROUNDS))

    def read_bytes_per_s(self) -> float:
        return READ_BYTES / seconds_of(self._reader)

    def mads_per_s(self) -> float:
        return self.threads * ROUNDS * CHAINS * DOTS / seconds_of(self._multiplier)

    def best(self, times: int = 3) -> MeasuredLimits:
        """The best of several measurements, which is what the machine can do."""
        return MeasuredLimits(
            self.threads,
            max(self.read_bytes_per_s() for _ in range(times)),
            max(self.mads_per_s() for _ in range(times)),
        )

    def close(self) -> None:
        self._reader.close()
        self._multiplier.close()


def seconds_of(executor: Executor) -> float:
    begin = time.perf_counter()
    executor.run({})
    return time.perf_counter() - begin


def measure_limits(threads: int) -> MeasuredLimits:
    """Both limits of `threads` threads; takes about half a second."""
    meter = LimitMeter(threads)
    try:
        return meter.best()
    finally:
        meter.close()
