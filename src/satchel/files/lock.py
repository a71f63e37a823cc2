"""A lock between processes, kept by the system and so let go when its holder dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from satchel.base import log

if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


@contextmanager
def locked(path: Path, what: str) -> Generator[None]:
    """Holds the lock at `path`; waits, saying so once, while another process holds it.

    The file stays: to delete it would let a third process lock another file of the same name.
    Raises OSError when the file can't be made.
    """
    with path.open("ab") as file:
        if not _try_lock(file):
            log.note(f"waiting for another process that is busy with {what}")
            while not _try_lock(file):
                time.sleep(0.1)
        yield
