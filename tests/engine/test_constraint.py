"""What callers put between the logits and the choice: constraints, and functions of their own."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.engine.asks import GREEDY, Ask, run
from tests.engine.fake import FakeModel, Letters

from satchel.base.errors import OptionError
from satchel.engine.constraint import WORD, allowed_ones
from satchel.engine.engine import Engine
from satchel.engine.request import Generation
from satchel.engine.sampler import Sampler, SamplingParams

if TYPE_CHECKING:
    from satchel.engine.params import Processor
    from satchel.engine.rows import Row

VOCAB = 300


def mask_of(ids: Iterable[int], vocab_size: int = VOCAB) -> npt.NDArray[np.uint32]:
    mask = np.zeros(-(-vocab_size // WORD), np.uint32)
    for token in ids:
        mask[token // WORD] |= np.uint32(1 << token % WORD)
    return mask


class Script:
    """Allows, token after token, what it was told."""

    def __init__(self, *allowed: Iterable[int]) -> None:
        self.left = list(allowed)
        self.accepted: list[int] = []

    def allowed(self) -> npt.NDArray[np.uint32] | None:
        return mask_of(self.left[0])

    def accept(self, token: int) -> None:
        assert token in self.left.pop(0)
        self.accepted.append(token)

    def forced(self) -> tuple[int, ...]:
        return ()

    mask_ms = 0.0

    @property
    def is_done(self) -> bool:
        return not self.left


@given(st.sets(st.integers(0, VOCAB - 1)), st.integers(1, VOCAB))
def test_a_mask_allows_the_bits_that_are_set(ids: set[int], vocab_size: int) -> None:
    found = allowed_ones(mask_of(ids), vocab_size)
    assert found.tolist() == [token in ids for token in range(vocab_size)]


@given(
    st.sets(st.integers(0, VOCAB - 1), min_size=1),
    st.sampled_from([0.0, 1.0]),
    st.sampled_from([0, 1, 40]),
)
def test_only_what_is_allowed_is_chosen(ids: set[int], temperature: float, top_k: int) -> None:
    row = np.random.default_rng(0).normal(size=VOCAB).astype(np.float32)
    params = SamplingParams(temperature=temperature, top_k=top_k, seed=1)
    script = Script(ids)
    token = Sampler(params, VOCAB, script).choose(row, [])
    assert script.accepted == [token]
    if not temperature or top_k == 1:
        assert token == max(ids, key=lambda i: row[i])


def generation(engine: Engine, sampler: Sampler) -> Generation:
    return Generation(
        [1],
        engine.sequence(),
        lambda _: None,
        sampler=sampler,
        detokenizer=Letters(),
        max_tokens=50,
    )


def test_an_answer_ends_when_its_constraint_is_done() -> None:
    engine = Engine(FakeModel())
    script = Script(b"abc", b"xyz", b"!")
    request = generation(engine, Sampler(GREEDY, VOCAB, script))
    engine.submit(request)
    run(engine)
    assert len(script.accepted) == request.n_generated == 3
    assert script.accepted[-1] == ord("!")


def test_a_constraint_that_allows_what_the_bias_bans() -> None:
    params = SamplingParams(logit_bias={7: -math.inf})
    with pytest.raises(OptionError, match=r"^logit_bias with constraint: it bans every token"):
        Sampler(params, VOCAB, Script([7])).choose(np.zeros(VOCAB, np.float32), [])


def test_processors_change_logits_or_give_others() -> None:
    seen: list[tuple[int, ...]] = []

    def ban_first(tokens: tuple[int, ...], logits: Row) -> None:
        seen.append(tokens)
        logits[0] = -math.inf

    def turned(_: tuple[int, ...], logits: Row) -> Row:
        return -logits

    row = np.array([3, 2, 1, 0], np.float32)
    before = row.copy()
    assert Sampler(SamplingParams(0, processors=[ban_first]), 4).choose(row, [1, 2]) == 1
    assert Sampler(SamplingParams(0, processors=[turned]), 4).choose(row, []) == 3
    assert seen == [(1, 2)]
    np.testing.assert_array_equal(row, before)


def stumble(_: tuple[int, ...], _logits: Row) -> None:
    raise ValueError("a stone")


def leave(_: tuple[int, ...], _logits: Row) -> None:
    sys.exit(3)


def shorten(_: tuple[int, ...], logits: Row) -> Row:
    return logits[1:]


def spoil(_: tuple[int, ...], logits: Row) -> None:
    logits[3] = math.nan


def ban(_: tuple[int, ...], logits: Row) -> None:
    logits[:] = -math.inf


@pytest.mark.parametrize(
    ("processor", "message"),
    [
        (stumble, "processors: stumble failed: ValueError: a stone"),
        (leave, "processors: leave failed: SystemExit: 3"),
        (shorten, r"processors: shorten gave logits \(299,\), not \(300,\)"),
        (spoil, "processors: spoil gave NaN"),
        (ban, "processors: it bans every token"),
    ],
)
def test_a_processor_that_fails_ends_its_request_alone(processor: Processor, message: str) -> None:
    engine = Engine(FakeModel())
    others = [Ask(engine, [2]), Ask(engine, [3])]
    alone = [Ask(engine, [2]), Ask(engine, [3])]
    for ask in alone:
        engine.submit(ask)
        run(engine)
    failing = Ask(engine, [1], params=SamplingParams(processors=[processor]))
    for ask in (others[0], failing, others[1]):
        engine.submit(ask)
    run(engine)
    assert [ask.answer for ask in others] == [ask.answer for ask in alone]
    with pytest.raises(OptionError, match=f"^{message}"):
        raise failing.deltas[-1].error or AssertionError("it did not fail")


def test_a_processor_is_something_to_call() -> None:
    with pytest.raises(OptionError, match=r"^processors: 3 can't be called"):
        SamplingParams(processors=[3])  # pyright: ignore[reportArgumentType]
