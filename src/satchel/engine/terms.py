"""How a request is to be treated among others; nothing here changes what is answered."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from satchel.base.errors import OptionError
from satchel.engine.params import is_whole

HIGHEST = 100  # priority, and the lowest is its negative


@dataclass(frozen=True)
class Terms:
    """A request's place among others, see `engine.turns`, and the time it has, in seconds."""

    priority: int = 0
    owner: str | None = None
    timeout_s: float | None = None


def read_terms(options: Mapping[str, Any]) -> Terms:
    """The terms among options, checked. Raises OptionError."""
    priority = options.get("priority", 0)
    if not is_whole(priority) or not -HIGHEST <= priority <= HIGHEST:
        raise OptionError(
            f"priority: {priority!r} is not a whole number from {-HIGHEST} to {HIGHEST}"
        )
    owner = options.get("owner")
    if owner is not None and not isinstance(owner, str):
        raise OptionError(f"owner: {owner!r} is not a text")
    timeout = options.get("timeout_s")
    if timeout is not None:
        is_number = isinstance(timeout, int | float) and not isinstance(timeout, bool)
        if not is_number or not 0 < cast("float", timeout) < math.inf:
            raise OptionError(f"timeout_s: {timeout!r} is not a number of seconds above 0")
    return Terms(priority, owner, timeout)
