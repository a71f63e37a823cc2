"""The memory that the models of this process take together, for those who set it a limit."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from satchel.base.errors import CrowdedError
from satchel.base.log import size
from satchel.machine.memory import resident_bytes

if TYPE_CHECKING:
    from satchel.engine.ledger import Forecast

GROWTH_BYTES = 10 << 20  # workers, their tables, machine code, requests: what comes after loading


def room_in(memory: int) -> int:
    """What a forecast may promise of so much memory: 3 % are left for what it does not know."""
    return memory * 97 // 100


class Budget:
    """What the models of a process take."""

    def __init__(self) -> None:
        self.alone: int | None = None  # what the process had before its first model
        self.taken = WeakKeyDictionary[object, int]()
        self.loading = threading.Lock()


class Account:
    """One model's part, from before its file is opened."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._before = resident_bytes()
        if budget.alone is None:
            budget.alone = self._before
        self._own = 0

    @contextmanager
    def opened(self, limit: int | None) -> Generator[None]:
        """Where there is a limit, one model is loaded at a time. Its tokenizer has been by now."""
        now = resident_bytes()
        if now is not None and self._before is not None:
            self._own = max(0, now - self._before)
        if limit is None:
            yield
        else:
            with self._budget.loading:
                yield

    @property
    def process(self) -> int | None:
        """What the process takes beside its models' memory; None: not known."""
        alone = self._budget.alone
        return None if alone is None else alone + self._own

    def checked(self, found: Forecast, limit: int) -> Forecast:
        """Raises CrowdedError where the other models leave no room for this."""
        others = sum(self._budget.taken.values())
        if found.total + others > room_in(limit):
            raise CrowdedError(
                f"the model needs {found}; other models take {size(others)}, and {size(limit)} "
                "are allowed"
            )
        return found

    def take(self, owner: object, n_bytes: int) -> None:
        """The model is there, and takes so much till `owner` goes or is dropped."""
        self._budget.taken[owner] = n_bytes + self._own + GROWTH_BYTES


MODELS = Budget()
"""This process's."""
