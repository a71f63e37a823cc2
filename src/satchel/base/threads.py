"""Threads that begin, or whose lack is told: none that someone waits for in vain."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Generator
from contextlib import contextmanager

from satchel.base.errors import MemoryLimitError

# a stack, of 8 MB where no one chose another size, and what a thread's first steps take: one that
# finds no memory for these dies, and Python's `start` waits for its first sign of life for ever
NEEDED = 16 << 20
NO_ROOM = "the system has no room for one more thread; unload something, or ask for less at once"


@contextmanager
def room_for_a_thread() -> Generator[None]:
    """Around what may start one. Raises MemoryLimitError where the system has no room for it."""
    try:
        mmap.mmap(-1, NEEDED).close()
    except (OSError, MemoryError):
        raise MemoryLimitError(NO_ROOM) from None
    try:
        yield
    except RuntimeError as error:
        if "new thread" not in str(error):
            raise
        raise MemoryLimitError(NO_ROOM) from None


def start(thread: threading.Thread) -> None:
    """Starts a thread. Raises MemoryLimitError where the system has no room for it."""
    with room_for_a_thread():
        thread.start()
