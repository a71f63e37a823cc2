"""Repeating the last step is planning it anew, whatever comes between."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel

from satchel.engine.engine import Engine
from satchel.runtime.batch import PAGE, Batch

WORK = st.lists(
    st.tuples(st.integers(1, 2 * PAGE + 5), st.integers(0, PAGE + 9), st.integers(0, 40)),
    min_size=1,
    max_size=4,
)


def served(
    work: list[tuple[int, int, int]], *, anew: bool, windows: tuple[int | None, ...], n_pages: int
) -> tuple[list[Batch], list[list[int]], int]:
    """The batches and answers of some asks (tokens of prompt, of answer, when it comes), and how
    many steps were repeated."""
    model = FakeModel(windows=windows, n_pages=n_pages)
    engine = Engine(model)
    repeat, n_repeated = engine.scheduler.repeat, 0

    def counted() -> list[int]:
        nonlocal n_repeated
        tokens = [] if anew else repeat()
        n_repeated += bool(tokens)
        return tokens

    engine.scheduler.repeat = counted
    asks = [Ask(engine, range(i, i + n), n_answer) for i, (n, n_answer, _) in enumerate(work)]
    for at in range(41):
        for ask, (_, _, when) in zip(asks, work, strict=True):
            if when == at:
                engine.submit(ask)
        for delta in engine.step():
            delta.request.deliver(delta)
        engine.scheduler.check()
    run(engine)
    return model.batches, [ask.answer for ask in asks], n_repeated


def same(a: Batch, b: Batch) -> bool:
    pairs = [(getattr(a, field.name), getattr(b, field.name)) for field in fields(Batch)]
    return all(x is y or all(map(np.array_equal, x, y)) for x, y in pairs)


@settings(max_examples=15)
@given(WORK, st.sampled_from([(None,), (None, 20), (64, None, 100)]), st.sampled_from([5, 16]))
def test_batches_and_answers_are_the_same(
    work: list[tuple[int, int, int]], windows: tuple[int | None, ...], n_pages: int
) -> None:
    batches, answers, _ = served(work, anew=False, windows=windows, n_pages=n_pages)
    want, wanted, n_repeated = served(work, anew=True, windows=windows, n_pages=n_pages)
    assert answers == wanted
    assert n_repeated == 0
    assert len(batches) == len(want)
    assert all(map(same, batches, want))


@pytest.mark.parametrize(("prompt", "n_planned"), [(10, 3), (63, 4)])
def test_most_steps_of_an_answer_are_repeated(prompt: int, n_planned: int) -> None:
    """All but the prompt's, the first, and those that begin a page."""
    _, (answer,), n_repeated = served(
        [(prompt, PAGE + 1, 0)], anew=False, windows=(None,), n_pages=16
    )
    assert len(answer) == PAGE + 1
    assert n_repeated >= len(answer) - n_planned
