"""Memory: aligned, zero, bounded, and alive as long as someone looks at it."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import numpy as np
import pytest

from satchel.base.errors import KernelError, MemoryLimitError
from satchel.machine.memory import resident_bytes
from satchel.runtime.memory import ALIGN, HUGE, Memory, align, prefer_huge_pages


@pytest.mark.parametrize("n_bytes", [0, 1, 100, 4096, HUGE - 1, HUGE, 3 * HUGE + 5])
@pytest.mark.parametrize("huge", [True, False])
def test_aligned_and_zero(n_bytes: int, huge: bool) -> None:
    with Memory(n_bytes, huge) as memory:
        raw = memory.array("u1", n_bytes)
        assert memory.address % (HUGE if huge and n_bytes >= HUGE else ALIGN) == 0
        assert n_bytes == 0 or raw.ctypes.data == memory.address
        assert not raw.any()
        raw[:] = 7
        assert (memory.array("u1", n_bytes) == 7).all()


def test_views_share_and_outlive() -> None:
    memory = Memory(64)
    memory.array("f4", 4, 16)[:] = [1, 2, 3, 4]
    words = memory.array("f4", 16)
    memory.close()
    assert words.tolist() == [0] * 4 + [1, 2, 3, 4] + [0] * 8
    with pytest.raises(KernelError, match="given back"):
        memory.array("u1", 1)


@pytest.mark.parametrize(("count", "offset"), [(17, 0), (1, 64), (-1, 0), (1, -4), (1 << 62, 0)])
def test_bounds(count: int, offset: int) -> None:
    with Memory(64) as memory, pytest.raises(KernelError, match="outside"):
        memory.array("f4", count, offset)


def test_too_much() -> None:
    with pytest.raises(MemoryLimitError, match="MiB"):
        Memory(1 << 60)


def test_untouched_pages_are_free() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with Memory(8 << 30, huge=False) as memory:
        memory.array("u1", 1, 5 << 30)[:] = 1
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_align() -> None:
    assert [align(n) for n in (0, 1, 64, 65)] == [0, 64, 64, 128]


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    def test_huge_pages_are_asked_for(tmp_path: Path) -> None:
        path = tmp_path / "weights"
        path.write_bytes(bytes(4 << 20))
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):
            prefer_huge_pages(mapped)
            told = Path("/proc/self/smaps").read_text().split(str(path))[1]
        flags = next(line for line in told.splitlines() if line.startswith("VmFlags:"))
        assert "hg" in flags.split()


def test_whole_pages_are_given_back_and_no_others() -> None:
    page = mmap.PAGESIZE
    with Memory(8 * page) as memory:
        array = memory.array(np.uint8, 8 * page)
        array[:] = 7
        memory.discard(page - 1, 3 * page)  # a byte of page 0, pages 1 and 2, most of page 3
        assert np.all(array[:page] == 7)
        assert np.all(array[3 * page :] == 7)
        assert set(array[page : 3 * page].tolist()) <= {0, 7}
        if hasattr(mmap, "MADV_DONTNEED") and sys.platform == "linux":
            assert not array[page : 3 * page].any()
        memory.discard(5, 0)
        memory.discard(5, page // 2)
        assert np.all(array[:page] == 7)
        with pytest.raises(KernelError, match="lie outside"):
            memory.discard(7 * page, 2 * page)


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    def test_the_system_has_them_back() -> None:
        with Memory(32 << 20) as memory:
            memory.array(np.uint8, 32 << 20)[:] = 1
            before = resident_bytes() or 0
            memory.discard(0, 32 << 20)
            assert before - (resident_bytes() or 0) > 30 << 20
