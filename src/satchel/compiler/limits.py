"""What a plan has room for, and what is counted anew at each run."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.runtime.batch import PAGE
from satchel.runtime.plan import Plan


@dataclass(frozen=True)
class Limits:
    """What a plan has room for: tokens in a run, positions of a sequence, pages, sequences in a
    run.
    """

    max_batch: int
    context: int
    n_pages: int
    max_sequences: int


def max_pages(limits: Limits) -> int:
    """Pages of a sequence."""
    return -(-limits.context // PAGE)


def scalars_of(plan: Plan, counts: dict[str, int]) -> dict[str, int]:
    """All scalars of a plan, given those that are not counts of runs."""
    found: dict[str, int] = {}
    for name in plan.scalars:
        base, by, length = name.partition("_by_")
        found[name] = -(-counts[base] // int(length)) if by else counts[base]
    return found
