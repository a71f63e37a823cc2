"""What kernels may choose freely: their speed depends on it, and no bit of a result."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tiles:
    """How kernels cut their work. None: as many as suit the target's registers.

    The figures were measured to be best on one machine or another; `satchel tune` finds those of
    this one.
    """

    tokens: int | None = None  # of a product, that share a line of weights once it is unpacked
    lanes: int | None = None  # rows of a product at once: 4, 8 or 16
    ahead_bytes: int = 3072  # how far ahead weights are asked for, where several tokens share them
    longest_run: int = 256  # tokens of a product that all rows pass by, at most
    run_bytes: int = 4 << 20  # what their codes may take of a cache that cores share
    queries: int | None = None  # of attention, that share what was read of a page

    @property
    def are_sane(self) -> bool:
        """Whether kernels can be made so; a file may say anything."""
        return all(
            (name in FREE and value is None) or (type(value) is int and least <= value <= most)
            for (name, value), (least, most) in zip(vars(self).items(), BOUNDS, strict=True)
        ) and self.lanes in (None, 4, 8, 16)


FREE = ("tokens", "lanes", "queries")
BOUNDS = ((1, 16), (4, 16), (0, 1 << 20), (1, 1 << 16), (1, 1 << 40), (1, 24))
DEFAULT = Tiles()
