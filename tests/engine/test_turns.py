"""Whose turn it is."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from satchel.engine.pace import LEAST, STEP_S, Pace
from satchel.engine.turns import by_rank, divide, in_turn


@dataclass(frozen=True)
class Asked:
    made_s: float
    owner: str | None = None
    priority: int = 0


ASKED = st.lists(
    st.builds(Asked, st.floats(0, 9), st.sampled_from([None, "a", "b", "c"]), st.integers(-1, 1)),
    max_size=12,
)


def test_priority_before_age() -> None:
    old, new, high = Asked(1), Asked(2), Asked(3, priority=1)
    assert by_rank([new, high, old]) == [high, old, new]
    assert in_turn([new, high, old]) == [high, old, new]


def test_owners_take_turns() -> None:
    many = [Asked(n, "many") for n in range(4)]
    one, nobodys = Asked(8, "one"), Asked(9)
    assert in_turn([*many, one, nobodys]) == [many[0], one, nobodys, *many[1:]]


def test_who_is_busy_has_had_a_turn() -> None:
    first, second = Asked(1, "many"), Asked(2, "one")
    assert in_turn([first, second], busy=[Asked(0, "many")]) == [second, first]


@given(ASKED, ASKED)
def test_everyone_has_one_place_and_no_owner_overtakes_himself(
    requests: list[Asked], busy: list[Asked]
) -> None:
    ordered = in_turn(requests, busy)
    assert sorted(map(id, ordered)) == sorted(map(id, requests))
    for owner in ("a", "b", "c"):
        own = [r for r in ordered if r.owner == owner]
        assert own == by_rank(own)
    assert [r.priority for r in ordered] == sorted((r.priority for r in ordered), reverse=True)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=64), st.integers(64, 512))
def test_a_step_is_divided_up(pending: list[int], room: int) -> None:
    given = divide(pending, room)
    assert all(1 <= n <= most for n, most in zip(given, pending, strict=True))
    assert sum(given) == min(room, sum(pending))
    first = next((i for i, n in enumerate(pending) if n > 1), None)
    if first is not None:
        assert given[first] >= min(pending[first], (room - len(pending)) // 2)


def test_a_short_prompt_passes_a_long_one() -> None:
    assert divide([1, 4000, 4000, 20], 512) == [1, 490, 1, 20]
    assert divide([4000, 4000], 512) == [511, 1]
    assert divide([4000, 300], 512) == [256, 256]
    assert divide([1, 1, 1], 512) == [1, 1, 1]


def test_steps_are_kept_short_by_what_they_took() -> None:
    pace = Pace(512)
    assert pace.limit == 512
    pace.note(1, 9.0)  # no prompt, nothing to learn
    assert pace.limit == 512
    assert pace.seconds(100) == 0
    for _ in range(20):
        pace.note(256, 256 * 0.001)
    assert 0.9 * STEP_S < pace.limit * 0.001 <= STEP_S
    assert abs(pace.seconds(1000) - 1) < 1e-3
    for _ in range(20):
        pace.note(64, 64 * 0.1)
    assert pace.limit == LEAST


@given(st.floats(1e-5, 0.05), st.floats(0, 0.08))
def test_the_bound_is_found_whatever_a_step_costs_beside_its_tokens(
    token_s: float, fixed_s: float
) -> None:
    pace = Pace(512)
    for _ in range(60):
        pace.note(pace.limit, fixed_s + pace.limit * token_s)
    assert pace.limit == LEAST or fixed_s + pace.limit * token_s <= 1.01 * STEP_S
