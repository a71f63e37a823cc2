"""Who goes before whom, who gives way, and how long one waits. No answer depends on it."""

from __future__ import annotations

import time

import numpy as np
import pytest
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel
from tests.engine.test_scheduler import expected

from satchel.base.errors import OptionError
from satchel.engine.ask import read_options
from satchel.engine.engine import Engine
from satchel.engine.terms import Terms

LONG = list(range(200))


def ended(engine: Engine, *asks: Ask) -> list[Ask]:
    """Steps until all have ended; in which order they did."""
    order = list[Ask]()
    while engine.has_work:
        for delta in engine.step():
            delta.request.deliver(delta)
            if delta.is_last:
                order.append(next(ask for ask in asks if ask is delta.request))
        engine.scheduler.check()
    return order


def step(engine: Engine, n: int = 1) -> None:
    for _ in range(n):
        for delta in engine.step():
            delta.request.deliver(delta)
        engine.scheduler.check()


def submit(engine: Engine, *asks: Ask) -> list[Ask]:
    for ask in asks:
        engine.submit(ask)
    return list(asks)


def test_the_higher_priority_is_taken_up_first() -> None:
    engine = Engine(FakeModel(max_batch=1))
    asks = submit(
        engine,
        Ask(engine, [1]),
        Ask(engine, [2], terms=Terms(priority=-1)),
        Ask(engine, [3], terms=Terms(priority=2)),
    )
    assert ended(engine, *asks) == [asks[2], asks[0], asks[1]]


def test_the_lower_priority_gives_way_and_resumes_exactly() -> None:
    engine = Engine(FakeModel(n_pages=4, max_batch=64))
    (low,) = submit(engine, Ask(engine, LONG, 50, terms=Terms(priority=-1)))
    step(engine, 20)
    assert low.deltas
    (high,) = submit(engine, Ask(engine, LONG[::-1], 5))
    assert ended(engine, low, high) == [high, low]
    assert low.answer == expected(LONG, 50)
    assert high.answer == expected(LONG[::-1], 5)


def test_equal_priority_never_takes_anothers_place() -> None:
    engine = Engine(FakeModel(n_pages=4, max_batch=64))
    first, second = submit(engine, Ask(engine, LONG, 20), Ask(engine, LONG[::-1], 2))
    assert ended(engine, first, second) == [first, second]


def test_many_requests_of_one_owner_do_not_hold_up_another() -> None:
    engine = Engine(FakeModel(max_batch=2, n_pages=20))
    many = [Ask(engine, [n], terms=Terms(owner="many")) for n in range(8)]
    one = Ask(engine, [50], terms=Terms(owner="one"))
    order = ended(engine, *submit(engine, *many, one))
    assert order.index(one) <= 2


def test_a_short_prompt_is_not_held_up_by_long_ones() -> None:
    engine = Engine(FakeModel(max_batch=16))
    long, longer, short = submit(
        engine, Ask(engine, LONG, 1), Ask(engine, LONG, 1), Ask(engine, [1, 2, 3, 4], 1)
    )
    assert ended(engine, long, longer, short) == [short, long, longer]


def test_prompts_are_cut_short_while_answers_wait() -> None:
    model = FakeModel(context_length=2048, max_batch=512, n_pages=64)
    engine = Engine(model)
    engine.scheduler.pace.token_s = 0.004  # a prompt's token: 24 of them, or 16, in 0.1 s
    first, second = Ask(engine, [1], 50), Ask(engine, list(range(300)), 2)
    engine.submit(first)
    step(engine, 3)
    engine.submit(second)
    step(engine)
    assert np.bincount(model.batches[-1].sequences).tolist() == [1, 16]
    run(engine)
    engine.scheduler.pace.token_s = 0.004
    (third,) = submit(engine, Ask(engine, list(range(299, -1, -1)), 2))
    step(engine)
    assert model.batches[-1].n_tokens == 300, "no one waits: the step is as long as it likes"
    run(engine)
    assert (first.answer, second.answer) == (expected([1], 50), expected(list(range(300)), 2))
    assert third.answer == expected(list(range(299, -1, -1)), 2)


@pytest.mark.parametrize("n_steps", [0, 3, 20])
def test_a_request_ends_when_its_time_is_over(n_steps: int) -> None:
    engine = Engine(FakeModel(max_batch=16))
    late, other = submit(
        engine, Ask(engine, LONG, 50, terms=Terms(timeout_s=1000)), Ask(engine, LONG, 3)
    )
    step(engine, n_steps)
    late.due_s = time.perf_counter()
    step(engine)
    assert late.reason == "timeout"
    run(engine)
    assert other.answer == expected(LONG, 3)
    assert engine.usage().pages_in_use == 0


def test_a_request_that_waits_ends_when_its_time_is_over() -> None:
    engine = Engine(FakeModel(max_batch=1))
    running, late = submit(engine, Ask(engine, [1], 30), Ask(engine, [2], terms=Terms(timeout_s=9)))
    step(engine)
    late.due_s = time.perf_counter()
    ended(engine, running, late)
    assert (late.reason, late.answer) == ("timeout", [])
    assert running.answer == expected([1], 30)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"priority": 101}, "priority: 101"),
        ({"priority": True}, "priority: True"),
        ({"priority": 1.5}, r"priority: 1\.5"),
        ({"owner": 3}, "owner: 3"),
        ({"timeout_s": 0}, "timeout_s: 0"),
        ({"timeout_s": float("nan")}, "timeout_s: nan"),
        ({"timeout_s": "3"}, "timeout_s: '3'"),
        ({"timeout_s": False}, "timeout_s: False"),
    ],
)
def test_terms_that_make_no_sense(options: dict[str, object], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        read_options(options)


def test_terms_are_read() -> None:
    ask = read_options({"priority": 3, "owner": "me", "timeout_s": 2.5})
    assert ask.terms == Terms(3, "me", 2.5)
    assert read_options({}).terms == Terms()
