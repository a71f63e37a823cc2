"""Memory that kernels work in: aligned anonymous mappings, given by the system as touched."""

from __future__ import annotations

import contextlib
import mmap
from types import TracebackType
from typing import TYPE_CHECKING, Any

from satchel.base.errors import KernelError, MemoryLimitError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

ALIGN = 64  # bytes: a cache line, and the widest register
HUGE = 2 << 20  # bytes: a huge page of x86 and ARM


def align(n_bytes: int, to: int = ALIGN) -> int:
    """`n_bytes` rounded up to a multiple of `to`."""
    return -(-n_bytes // to) * to


class Memory:
    """`n_bytes` of zeroes at `address`. Pages that no one touches take no physical memory.

    From 2 MiB on it starts at a huge page, and asks the system to use such pages unless `huge` is
    False (for memory of which only scattered parts will be used). Closed, it is given back as soon
    as the last array made from it is gone.
    """

    def __init__(self, n_bytes: int, huge: bool = True) -> None:
        import numpy as np

        self.n_bytes = n_bytes
        huge = huge and n_bytes >= HUGE
        room = align(max(n_bytes, 1), mmap.PAGESIZE) + (HUGE if huge else 0)
        self._mapping: mmap.mmap | None = _map(room, huge)
        raw = np.frombuffer(self._mapping, np.uint8)
        start = -raw.ctypes.data % HUGE if huge else 0
        self._bytes: np.ndarray[Any, np.dtype[np.uint8]] | None = raw[start : start + n_bytes]
        self._start = start
        self.address: int = raw.ctypes.data + start

    def array(self, dtype: DTypeLike, count: int, offset: int = 0) -> np.ndarray[Any, Any]:
        """The `count` elements `offset` bytes into this memory, as an array that shares it."""
        import numpy as np

        dtype = np.dtype(dtype)
        if self._bytes is None:
            raise KernelError("this memory has been given back")
        if not 0 <= offset <= offset + count * dtype.itemsize <= self.n_bytes:
            raise KernelError(
                f"{count} elements of {dtype} at {offset} lie outside {self.n_bytes} bytes"
            )
        return self._bytes[offset : offset + count * dtype.itemsize].view(dtype)

    def discard(self, offset: int, n_bytes: int) -> None:
        """Gives the system back what it can take of these bytes: whole pages of its own. They read
        as zeroes then, or as they were. Systems that do not know how keep them.
        """
        self.array("u1", n_bytes, offset)  # whether they lie inside
        first = align(self._start + offset, mmap.PAGESIZE)
        end = (self._start + offset + n_bytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if self._mapping is not None and first < end and hasattr(mmap, "MADV_DONTNEED"):
            self._mapping.madvise(mmap.MADV_DONTNEED, first, end - first)

    def close(self) -> None:
        """Give the memory back."""
        self._bytes = self._mapping = None

    def __enter__(self) -> Memory:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _map(n_bytes: int, huge: bool) -> mmap.mmap:
    """A private anonymous mapping, in huge pages if asked for."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):  # Windows
            return mmap.mmap(-1, n_bytes)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        mapping = mmap.mmap(-1, n_bytes, flags=flags)
    except (OSError, OverflowError) as error:
        raise MemoryLimitError(
            f"the system has no {n_bytes / 2**20:,.0f} MiB of memory to give; "
            "use a smaller model or context"
        ) from error
    if huge:
        prefer_huge_pages(mapping)
    return mapping


def prefer_huge_pages(mapping: mmap.mmap) -> None:
    """Ask the system for huge pages. For a mapped file they are those of the page cache, which some
    systems make large when they first read or write them: as fast to read as anonymous memory.
    """
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them: ordinary pages serve as well
            mapping.madvise(mmap.MADV_HUGEPAGE)
