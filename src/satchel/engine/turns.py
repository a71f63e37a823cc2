"""Who goes first: by priority, then owners in turn, then as they came.

Only the order of work is decided here. What is answered does not depend on it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar


class Asker(Protocol):
    """What is asked of a request to give it a place."""

    @property
    def priority(self) -> int:
        """The higher goes first."""
        ...

    @property
    def owner(self) -> str | None:
        """Requests of one owner wait for each other, and not others' for all of them."""
        ...

    @property
    def made_s(self) -> float:
        """When it was made."""
        ...


A = TypeVar("A", bound=Asker)


def by_rank(requests: Iterable[A]) -> list[A]:
    """By priority, then as they came. When something has to give way, it is the last."""
    return sorted(requests, key=lambda request: (-request.priority, request.made_s))


def in_turn(requests: Iterable[A], busy: Iterable[Asker] = ()) -> list[A]:
    """By priority; then each owner's first, each one's second, and so on; then as they came.

    Who has `busy` requests already has had so many turns. One without an owner is its own.
    """
    turns = Counter(request.owner for request in busy if request.owner is not None)
    placed: list[tuple[int, int, A]] = []
    for request in by_rank(requests):
        turn = 0
        if request.owner is not None:
            turn = turns[request.owner]
            turns[request.owner] += 1
        placed.append((-request.priority, turn, request))
    return [request for *_, request in sorted(placed, key=lambda place: place[:2])]


def divide(pending: Sequence[int], room: int) -> list[int]:
    """How many of `room` tokens each gets, by how many it has to catch up with.

    Given in turn. Each gets one at least, where there is room for so many; the first gets half of
    the rest, so that it can't starve; and who has least to do goes before the others, so that
    whoever asks little waits little, however much others ask.
    """
    given = [1] * len(pending)
    rest = room - len(pending)
    shortest = sorted(range(len(pending)), key=pending.__getitem__)
    long = next((i for i, n in enumerate(pending) if n > 1), None)
    first = () if long is None else ((long, (rest + 1) // 2),)
    for i, most in (*first, *((i, rest) for i in shortest)):
        more = max(0, min(pending[i] - given[i], most, rest))
        given[i] += more
        rest -= more
    return given
