"""A request's part of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from satchel.engine.request import Request


@dataclass(frozen=True, slots=True)
class Share:
    """A request's part of a step: its next tokens, from position `begin` to `end`.

    The logits of those from `wanted` on are rows `rows` of what the model gives; of those from
    `embedded` on the final states are read.
    """

    request: Request
    begin: int
    end: int
    wanted: int
    rows: slice
    embedded: int

    @property
    def n_tokens(self) -> int:
        """How many tokens it computes."""
        return self.end - self.begin

    @property
    def n_wanted(self) -> int:
        """How many rows of logits it reads."""
        return self.end - self.wanted

    @property
    def n_embedded(self) -> int:
        """How many states it reads."""
        return self.end - self.embedded
