"""How much memory this process has, and how short of it the computer is.

Pressure stall information (PSI): docs.kernel.org/accounting/psi.html; control groups:
docs.kernel.org/admin-guide/cgroup-v2.html.
"""

from __future__ import annotations

import os
import re
import select
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True)
class Pressure:
    """How short of memory the machine, or this process's control group, is.

    `stalled` is the part of the last ten seconds in which some program had to wait for memory, 0 to
    1; `available_bytes` what may still be taken before others lose theirs. None: no one knows.
    """

    stalled: float | None = None
    available_bytes: int | None = None


def read_pressure(root: Path = ROOT) -> Pressure:
    """As Linux tells it now; elsewhere nothing is known. Of nested groups the shortest counts."""
    stalls = [_stalled(root / "proc/pressure/memory")]
    rooms = [_kilobytes(root / "proc/meminfo", "MemAvailable")]
    for group in _groups(root):
        stalls.append(_stalled(group / "memory.pressure"))
        rooms.append(_room(group))
    known = [room for room in rooms if room is not None]
    return Pressure(
        max((stall for stall in stalls if stall is not None), default=None),
        min(known, default=None),
    )


def watch_pressure(root: Path = ROOT) -> Watch | None:
    """Is readable each time that programs have waited for memory a tenth of two seconds, and costs
    nothing till then. None where the system offers no such thing. Whoever asks closes it.
    """
    if not hasattr(select, "EPOLLPRI"):
        return None
    try:
        file = os.open(root / "proc/pressure/memory", os.O_RDWR | os.O_NONBLOCK)
        try:
            os.write(file, b"some 200000 2000000\0")  # microseconds
            return Watch(file)
        except OSError:
            os.close(file)
            raise
    except OSError:
        return None


class Watch:
    """A trigger of the kernel's, behind a file that event loops know how to wait for."""

    def __init__(self, trigger: int) -> None:
        self._trigger = trigger
        self._epoll = select.epoll()
        self._epoll.register(trigger, select.EPOLLPRI)

    def fileno(self) -> int:
        """For `select` and its like."""
        return self._epoll.fileno()

    def clear(self) -> None:
        """Takes note of what happened: it is not readable before it happens again."""
        self._epoll.poll(0)

    def close(self) -> None:
        """Watches no longer."""
        self._epoll.close()
        os.close(self._trigger)


def resident_bytes(root: Path = ROOT) -> int | None:
    """The memory that this process has now, files that it has mapped included; None: not known."""
    if (kilobytes := _kilobytes(root / "proc/self/smaps_rollup", "Rss")) is not None:
        return kilobytes
    if sys.platform in ("win32", "linux"):
        return None
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # its most until now
    return most if sys.platform == "darwin" else 1024 * most


def _groups(root: Path) -> list[Path]:
    """This process's control group (version 2) and those around it."""
    found = re.search(r"^0::/(.*)$", _text(root / "proc/self/cgroup"), re.MULTILINE)
    if not found:
        return []
    base = root / "sys/fs/cgroup"
    own = base / found[1]
    return [own, *(group for group in own.parents if group == base or base in group.parents)]


def _room(group: Path) -> int | None:
    """What a group may still take; pages of files that no one has used of late count as free."""
    most, now = _text(group / "memory.max"), _text(group / "memory.current")
    if not (most.isdigit() and now.isdigit()):
        return None
    cold = re.search(r"^inactive_file (\d+)$", _text(group / "memory.stat"), re.MULTILINE)
    return max(0, int(most) - int(now) + (int(cold[1]) if cold else 0))


def _stalled(path: Path) -> float | None:
    found = re.search(r"^some avg10=(\d+\.\d+) ", _text(path), re.MULTILINE)
    return float(found[1]) / 100 if found else None


def _kilobytes(path: Path, name: str) -> int | None:
    found = re.search(rf"^{name}:\s+(\d+) kB$", _text(path), re.MULTILINE)
    return 1024 * int(found[1]) if found else None


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii", "replace").strip()
    except OSError:
        return ""
