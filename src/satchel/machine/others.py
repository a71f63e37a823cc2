"""What macOS and other systems tell about the computer."""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any, ClassVar

from satchel.machine.machine import Cache, Core, Machine


def read_darwin(isa: str) -> Machine:
    """The machine as macOS's sysctl knows it."""
    levels = _sysctl("hw.nperflevels") or 1
    cores: list[Core] = []
    for level in range(levels):  # 0 has the fastest cores
        name = f"hw.perflevel{level}" if levels > 1 else "hw"
        physical = _sysctl(f"{name}.physicalcpu") or 1
        threads = max(1, (_sysctl(f"{name}.logicalcpu") or physical) // physical)
        for _ in range(physical):
            first = sum(len(core.cpus) for core in cores)
            cores.append(Core(tuple(range(first, first + threads)), 1024 if level == 0 else 400))
    name = "hw.perflevel0" if levels > 1 else "hw"
    line = _sysctl("hw.cachelinesize") or 64
    sizes = [_sysctl(f"{name}.l1dcachesize"), _sysctl(f"{name}.l2cachesize")]
    sizes.append(_sysctl("hw.l3cachesize"))
    return Machine(
        isa=isa,
        system="darwin",
        name=_sysctl_text("machdep.cpu.brand_string") or isa,
        cores=tuple(cores),
        allowed=frozenset(cpu for core in cores for cpu in core.cpus),
        quota=None,
        caches=tuple(Cache(i, n, line_bytes=line) for i, n in enumerate(sizes, 1) if n),
        memory_bytes=_sysctl("hw.memsize") or 1 << 32,
        page_bytes=mmap.PAGESIZE,
    )


def read_other(isa: str, system: str) -> Machine:
    """The machine as far as Python itself knows it."""
    n = os.cpu_count() or 1
    return Machine(
        isa=isa,
        system=system,
        name=isa,
        cores=tuple(Core((cpu,)) for cpu in range(n)),
        allowed=frozenset(range(n)),
        quota=None,
        caches=(),
        memory_bytes=_windows_memory() if system == "win32" else _posix_memory(),
        page_bytes=mmap.PAGESIZE,
    )


def _sysctl(name: str) -> int:
    """A number; 0 when there is none of this name."""
    value, size = ctypes.c_int64(0), ctypes.c_size_t(8)
    found = ctypes.CDLL(None).sysctlbyname(
        name.encode(), ctypes.byref(value), ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return value.value if found == 0 else 0


def _sysctl_text(name: str) -> str:
    raw, size = ctypes.create_string_buffer(256), ctypes.c_size_t(256)
    found = ctypes.CDLL(None).sysctlbyname(
        name.encode(), raw, ctypes.byref(size), None, ctypes.c_size_t(0)
    )
    return raw.value.decode(errors="replace") if found == 0 else ""


def _posix_memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


class _MemoryStatus(ctypes.Structure):
    """MEMORYSTATUSEX of Windows."""

    _fields_: ClassVar = [
        ("length", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("physical", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 6),
    ]


def _windows_memory() -> int:
    status: Any = _MemoryStatus(length=ctypes.sizeof(_MemoryStatus))
    windows: Any = ctypes
    windows.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))
    return int(status.physical)
