"""What one run of a template may use: time, and the sizes of the values that it makes."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any, cast

from satchel.base.errors import TemplateError

SECONDS = 1.0  # of this thread's processor time, so that a busy machine makes no difference
VALUE_SIZE = 8 << 20  # of one value, in characters
TOTAL_SIZE = 64 << 20  # of all values and all output together
INT_BITS = 1 << 14


class Budget:
    """Counts what a run has used, and ends it with TemplateError when that is too much.

    The size of a value counts whatever it holds as often as it appears in it, as printing it would:
    thirty lists, each holding the one before twice, are small in memory and endless on paper.
    """

    def __init__(self) -> None:
        self._deadline = time.thread_time() + SECONDS
        self._left = TOTAL_SIZE
        self._sizes: dict[int, tuple[object, int]] = {}  # templates can't change what they hold

    def spend(self, size: int) -> None:
        """Count `size` more characters, and look at the clock."""
        self._left -= size
        if self._left < 0:
            raise TemplateError(f"the chat template makes more than {TOTAL_SIZE} characters")
        if time.thread_time() > self._deadline:
            raise TemplateError(f"the chat template takes more than {SECONDS:g} s")

    def foresee(self, size: int) -> None:
        """Refuse a value before it is made."""
        if size > VALUE_SIZE:
            raise TemplateError(f"the chat template makes a value of {size} characters")

    def check(self, value: Any) -> None:
        """Count a value that was just made, and refuse it when it holds too much."""
        size = self.size(value)
        self.foresee(size)
        nested = isinstance(value, list | tuple | dict | set | frozenset)
        self.spend(8 * len(cast("Collection[Any]", value)) if nested else size)

    def size(self, value: Any) -> int:
        """The characters in a value, roughly as many as its printed form has."""
        if isinstance(value, str | bytes):
            return len(value) + 1
        if isinstance(value, int):
            return value.bit_length() // 3 + 1
        if not isinstance(value, list | tuple | dict | set | frozenset):
            return 1
        known = self._sizes.get(id(cast("object", value)))
        if known is None:
            known = (cast("object", value), self._size_inside(cast("Collection[Any]", value)))
            self._sizes[id(known[0])] = known  # holds the value, so that its id stays its own
        return known[1]

    def _size_inside(self, values: Collection[Any]) -> int:
        size = 8 * len(values) + sum(map(self.size, values))
        if isinstance(values, Mapping):
            size += sum(map(self.size, cast("Mapping[Any, Any]", values).values()))
        return size
