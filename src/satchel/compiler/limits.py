"""What a plan has room for, and what is counted anew at each run."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.kernels.cache_types import F16
from satchel.runtime.batch import PAGE, pages_within
from satchel.runtime.plan import Plan

MASS = "mass."
"""How the names begin of each layer's buffer of how much is attended to each slot: f32 [pages, kv
heads, PAGE]. Layers have their own, so that all add in one order whatever the batch.
"""


@dataclass(frozen=True)
class Limits:
    """What a plan has room for: tokens in a run, positions of a sequence, pages (of layers that
    see all of it; see `group_pages`), sequences in a run; the types that K and V are kept in;
    whether slots can be moved; and whether it is weighed what is attended to.
    """

    max_batch: int
    context: int
    n_pages: int
    max_sequences: int
    cache_types: tuple[str, str] = (F16, F16)
    moves: bool = False
    weighs: bool = False


def max_pages(limits: Limits) -> int:
    """Pages of a sequence."""
    return -(-limits.context // PAGE)


@dataclass(frozen=True)
class Caches:
    """A cache group, and its layers' buffers: each holds all pages, one after another."""

    window: int | None
    n_pages: int
    buffers: tuple[str, ...]


def group_pages(limits: Limits, window: int | None) -> int:
    """Pages of a cache group: for each context that a group without a window would hold, the pages
    of a window and of a chunk.
    """
    if window is None:
        return limits.n_pages
    contexts = max(1, limits.n_pages // max_pages(limits))
    return min(limits.n_pages, contexts * pages_within(window - 1 + limits.max_batch))


def tables_name(group: int) -> str:
    """The input that holds a cache group's tables."""
    return f"tables.{group}"


def moves_names(group: int) -> tuple[str, str, str]:
    """The inputs that say which slots of a cache group move; see kernels.move."""
    return f"targets.{group}", f"sources.{group}", f"shifts.{group}"


def moved_name(group: int) -> str:
    """The scalar that counts the pages of a cache group that slots are moved to."""
    return f"moved.{group}"


def scalars_of(plan: Plan, counts: dict[str, int]) -> dict[str, int]:
    """All scalars of a plan, given those that are not counts of runs."""
    found: dict[str, int] = {}
    for name in plan.scalars:
        base, by, length = name.partition("_by_")
        found[name] = -(-counts[base] // int(length)) if by else counts[base]
    return found
