"""What is done when memory is short, in this order, a step of it a second while it stays so:

1. the colder half of the pages that no request uses goes: beginnings of prompts used longest ago;
2. all others of these go too: what conversations at rest left there. Where pages are saved on disk
   and that is worth it, each is written before it goes, and read again when it is wanted;
3. new requests are refused.

The memory of pages that are free now is given back to the system each time. Keys and values of
conversations at rest are not made smaller in memory: all pages of a model are of one type. Nothing
that has begun is ended or changed: what went is computed or read again, with the same bits. When
memory is not short any more, all is as before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from satchel.base import log
from satchel.base.errors import MemoryLimitError
from satchel.machine.memory import Pressure, read_pressure, resident_bytes

PERIOD_S = 1.0  # between two looks
STALLED = 0.1  # of the time some program waits for memory
RESERVE_BYTES = 64 << 20  # to be left for others
HALF, ALL, REFUSE = 1, 2, 3


class Room(Protocol):
    """What an engine can do. Used by its thread, between two steps."""

    def idle_pages(self) -> int:
        """How many pages no request uses."""
        ...

    def spill_idle(self, n_pages: int) -> int:
        """Frees so many of them, the coldest first."""
        ...

    def give_back(self) -> int:
        """Gives free pages' memory to the system; bytes."""
        ...


class Relief:
    """Looks how short memory is, and acts."""

    def __init__(self, room: Room, limit: int | None = None) -> None:
        """`limit`: the most bytes that the process may have."""
        self.limit = limit
        self.read: Callable[[], Pressure] = read_pressure
        self.stage = 0  # what was done last
        self.n_given_back = 0  # bytes
        self.n_refused = 0  # requests
        self._room = room
        self._lock = threading.Lock()
        self.calm_until_s = 0.0  # when to look again; 0: memory is short
        self._due_s = 0.0
        self._why = ""  # memory is short; empty: it is not
        self._may_act = False

    def is_short(self, now_s: float) -> bool:
        """Whether memory is short. Any thread may ask; it looks once a second at most."""
        with self._lock:
            if now_s >= self._due_s:
                self._due_s = now_s + PERIOD_S
                self._why = self._look()
                self._may_act = bool(self._why)
                if not self._why:
                    self.stage = 0
                self.calm_until_s = 0.0 if self._why else self._due_s
            return bool(self._why)

    def tend(self, now_s: float) -> None:
        """Does what is next to be done. By the engine's thread, between two steps."""
        if not self.is_short(now_s) or not self._may_act:
            return
        self._may_act = False
        before, idle = self.stage, self._room.idle_pages()
        self.stage = min(self.stage + 1, REFUSE) if idle else REFUSE
        if idle:
            self._room.spill_idle(-(-idle // 2) if self.stage == HALF else idle)
        n_bytes = self._room.give_back()
        self.n_given_back += n_bytes
        if before != self.stage:
            log.warning(f"memory is short: {self._why}; {self._done(n_bytes)}")

    def admit(self) -> None:
        """Raises MemoryLimitError for a new request while there is nothing left to be done."""
        if self.stage == REFUSE:
            self.n_refused += 1
            raise MemoryLimitError(
                f"memory is short: {self._why}; new requests are refused for now, come back later"
            )

    def _look(self) -> str:
        found = self.read()
        if found.available_bytes is not None and found.available_bytes < RESERVE_BYTES:
            return f"{log.size(found.available_bytes)} are left"
        if found.stalled is not None and found.stalled >= STALLED:
            return f"programs wait for it {found.stalled:.0%} of the time"
        if self.limit is not None and (resident_bytes() or 0) > self.limit:
            return f"more than {log.size(self.limit)} are taken"
        return ""

    def _done(self, n_bytes: int) -> str:
        if self.stage == REFUSE:
            return "new requests are refused"
        what = "all" if self.stage == ALL else "half"
        return f"{what} of what was kept for later was dropped, {log.size(n_bytes)} were given back"
