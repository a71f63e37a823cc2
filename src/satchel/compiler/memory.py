"""Where activations live: buffers that are never alive at once share memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from satchel.runtime.plan import Buffer, Ref, Step

ALIGN = 64


@dataclass(frozen=True)
class Life:
    """The phases from a buffer's first use to its last, both included."""

    first: int
    last: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def lives(steps: tuple[Step, ...]) -> dict[str, Life]:
    """Each buffer's life, by the steps that name it."""
    found: dict[str, Life] = {}
    for step in steps:
        for arg in step.args:
            if isinstance(arg, Ref):
                known = found.get(arg.buffer, Life(step.phase, step.phase))
                found[arg.buffer] = Life(min(known.first, step.phase), max(known.last, step.phase))
    return found


def plan_memory(buffers: tuple[Buffer, ...], steps: tuple[Step, ...]) -> tuple[Buffer, ...]:
    """The same buffers, those of the arena at offsets where no two that are alive at once overlap.

    Greedy by size: the largest first, each at the lowest place that is free during its life.
    """
    alive = lives(steps)
    placed: list[Buffer] = []
    for buffer in sorted((b for b in buffers if b.kind == "arena"), key=lambda b: -b.bytes):
        life = alive[buffer.name]
        at = 0
        for other in sorted(placed, key=lambda b: b.offset):
            if life.meets(alive[other.name]) and at < other.offset + other.bytes:
                if at + buffer.bytes <= other.offset:
                    break
                at = -(-(other.offset + other.bytes) // ALIGN) * ALIGN
        placed.append(replace(buffer, offset=at))
    offsets = {b.name: b.offset for b in placed}
    return tuple(replace(b, offset=offsets[b.name]) if b.name in offsets else b for b in buffers)
