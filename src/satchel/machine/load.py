"""How much of the processors other programs take."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType


def busy_s(cpus: Iterable[int], root: Path = Path("/")) -> float | None:
    """Seconds that all programs together have used of these logical CPUs; None if no one knows."""
    wanted = {f"cpu{cpu}" for cpu in cpus}
    try:
        lines = (root / "proc/stat").read_text("ascii").splitlines()
        rows = [line.split() for line in lines if line.partition(" ")[0] in wanted]
        # user, nice, system, [idle, iowait,] irq, softirq, steal; guests are among the users
        ticks = sum(int(row[i]) for row in rows for i in (1, 2, 3, 6, 7, 8))
        return ticks / os.sysconf("SC_CLK_TCK") if rows else None
    except (OSError, ValueError, IndexError):
        return None


def _own_s() -> float:
    """Seconds that this process has used, and children of it that are done."""
    return sum(os.times()[:4])


class LoadMeter:
    """Measures from `with` to its end which share of the CPUs others took: 0 to 1."""

    def __init__(self, cpus: frozenset[int]) -> None:
        self._cpus = cpus
        self.share = 0.0

    def __enter__(self) -> LoadMeter:
        self._begin = busy_s(self._cpus), _own_s(), time.perf_counter()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        before, own, begin = self._begin
        after = busy_s(self._cpus)
        if before is not None and after is not None:
            others = after - before - (_own_s() - own)
            room = (time.perf_counter() - begin) * len(self._cpus)
            self.share = min(1.0, max(0.0, others / room)) if room else 0.0


def others_share(cpus: frozenset[int], seconds: float) -> float:
    """The share of these CPUs that others take now, seen by waiting a while."""
    with LoadMeter(cpus) as load:
        time.sleep(seconds)
    return load.share
