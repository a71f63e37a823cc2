"""Whoever shares the steps, and however little room there is: everyone hears the same answer."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel

from satchel.base.errors import CancelledError, KernelError, MemoryLimitError
from satchel.engine.engine import Engine
from satchel.engine.request import Request, Scoring
from satchel.engine.sampler import SamplingParams
from satchel.engine.terms import Terms

PROMPTS = st.lists(st.integers(0, 299), min_size=1, max_size=150)
SAMPLED = SamplingParams(temperature=1, top_k=5, seed=3)


def expected(prompt: list[int], n: int) -> list[int]:
    """The greedy answer, by calling the fake's function and nothing else."""
    model, history = FakeModel(), list(prompt)
    for _ in range(n):
        history.append(int(model.logits(history).argmax()))
    return history[len(prompt) :]


@settings(max_examples=50, deadline=None)
@given(PROMPTS, st.integers(1, 40), st.integers(1, 100))
def test_alone_in_chunks_of_any_size(prompt: list[int], max_batch: int, n: int) -> None:
    engine = Engine(FakeModel(max_batch=max_batch))
    ask = Ask(engine, prompt, n)
    engine.submit(ask)
    run(engine)
    assert ask.answer == expected(prompt, n)
    assert ask.reason == "length"
    assert engine.usage().pages_in_use == 0


@settings(max_examples=20, deadline=None)
@given(st.lists(PROMPTS, min_size=2, max_size=7), st.integers(1, 50), st.integers(4, 16))
def test_beside_others_as_alone(prompts: list[list[int]], max_batch: int, n_pages: int) -> None:
    alone: list[list[int]] = []
    for prompt in prompts:
        engine = Engine(FakeModel())
        ask = Ask(engine, prompt, 30, SAMPLED)
        engine.submit(ask)
        run(engine)
        alone.append(ask.answer)
    engine = Engine(FakeModel(max_batch=max_batch, n_pages=n_pages))
    asks = [Ask(engine, prompt, 30, SAMPLED) for prompt in prompts]
    for ask in asks:
        engine.submit(ask)
    run(engine)
    assert [ask.answer for ask in asks] == alone
    assert engine.usage().pages_in_use == 0


@settings(max_examples=30, deadline=None)
@given(PROMPTS, PROMPTS, st.integers(1, 40))
def test_scoring_reads_every_position(tokens: list[int], other: list[int], max_batch: int) -> None:
    model = FakeModel(max_batch=max_batch, n_pages=4)
    engine = Engine(model)
    scoring = Scoring(tokens, engine.sequence(), lambda _: None, model.vocab_size)
    for request in (Ask(engine, other, 100), scoring, Ask(engine, other)):
        engine.submit(request)
    run(engine)
    rows = [model.logits(tokens[: i + 1]) for i in range(len(tokens))]
    np.testing.assert_array_equal(scoring.logits, np.array(rows))


def test_a_prompt_shares_steps_with_a_running_answer() -> None:
    model = FakeModel(max_batch=16)
    engine = Engine(model)
    first, second = Ask(engine, [1], 20), Ask(engine, list(range(100)), 4)
    engine.submit(first)
    for _ in range(3):
        engine.step()
    engine.submit(second)
    before = len(model.batches)
    engine.step()
    batch = model.batches[before]
    assert np.bincount(batch.sequences).tolist() == [1, 15]
    assert batch.wanted.tolist() == [0]
    run(engine)
    assert second.answer == expected(list(range(100)), 4)


def test_a_long_prompt_leaves_room_for_those_who_came_later() -> None:
    model = FakeModel(max_batch=16)
    engine = Engine(model)
    first, second = Ask(engine, list(range(100))), Ask(engine, [1])
    engine.submit(first)
    engine.submit(second)
    engine.step()
    assert np.bincount(model.batches[0].sequences).tolist() == [15, 1]
    assert model.batches[0].wanted.tolist() == [15]


def preempting(second: Callable[[Engine], Request]) -> tuple[FakeModel, Engine]:
    """Two requests of three pages each grow side by side until four pages are not enough."""
    model = FakeModel(max_batch=2, n_pages=4)
    engine = Engine(model)
    engine.submit(Ask(engine, list(range(100)), 60))
    engine.submit(second(engine))
    while not engine.scheduler.waiting or model.batches == []:
        engine.step()
        engine.scheduler.check()
    return model, engine


def test_a_request_that_has_to_wait_keeps_what_no_one_needs() -> None:
    ask: list[Ask] = []

    def second(engine: Engine) -> Ask:
        ask.append(Ask(engine, list(range(150, 280)), 3))
        return ask[0]

    model, engine = preempting(second)
    run_before = len(model.batches)
    run(engine)
    assert ask[0].answer == expected(list(range(150, 280)), 3)
    computed = sum(batch.n_tokens for batch in model.batches[:run_before])
    total = sum(batch.n_tokens for batch in model.batches)
    assert 0 < total - (159 + 132) <= 70, "only what was lost is computed again"
    assert computed < 159 + 132


def test_scoring_goes_on_where_it_was_when_it_had_to_wait() -> None:
    scorings: list[Scoring] = []

    def second(engine: Engine) -> Scoring:
        scorings.append(Scoring(range(150), engine.sequence(), lambda _: None, 300))
        return scorings[0]

    model, engine = preempting(second)
    assert 0 < scorings[0].n_read < 150
    run(engine)
    rows = [model.logits(range(i + 1)) for i in range(150)]
    np.testing.assert_array_equal(scorings[0].logits, np.array(rows))


def test_more_requests_than_a_step_has_room_for() -> None:
    engine = Engine(FakeModel(max_batch=3, n_pages=100))
    asks = [Ask(engine, [i], 5) for i in range(10)]
    for ask in asks:
        engine.submit(ask)
    run(engine)
    assert [ask.answer for ask in asks] == [expected([i], 5) for i in range(10)]


def test_no_tokens_asked_for_computes_the_prompt_only() -> None:
    model = FakeModel(max_batch=16)
    engine = Engine(model)
    ask = Ask(engine, list(range(40)), 0)
    engine.submit(ask)
    run(engine)
    assert ask.answer == []
    assert ask.reason == "length"
    assert engine.usage().pages_kept == 1
    assert sum(batch.n_tokens for batch in model.batches) == 40
    assert sum(len(batch.wanted) for batch in model.batches) == 0


def test_ends_at_the_full_context() -> None:
    engine = Engine(FakeModel(context_length=130, n_pages=3))
    ask = Ask(engine, list(range(100)), 10_000)
    engine.submit(ask)
    run(engine)
    assert len(ask.answer) == 30
    assert ask.reason == "length"


def test_a_context_that_the_pages_cannot_hold() -> None:
    with pytest.raises(MemoryLimitError, match="takes 4 pages, and there are 3"):
        Engine(FakeModel(context_length=256, n_pages=3))


def test_cancelling_frees_the_pages_before_the_next_step() -> None:
    model = FakeModel()
    engine = Engine(model)
    ask, queued, other = (Ask(engine, list(range(100))) for _ in range(3))
    for request in (ask, queued, other):
        engine.submit(request)
    engine.step()
    ask.cancel()
    queued.cancel()
    run(engine)
    assert (ask.answer, queued.answer) == ([], [])
    assert other.answer == expected(list(range(100)), 8)
    assert engine.usage().pages_in_use == 0


def test_stop_tokens_end_the_answer_and_have_no_text() -> None:
    engine = Engine(FakeModel(reply=lambda history: [72, 105, 299, 33][len(history) - 1]))
    ask = Ask(engine, [0], stop_ids=frozenset({299}))
    engine.submit(ask)
    run(engine)
    assert (ask.answer, ask.text, ask.reason) == ([72, 105, 299], "Hi", "stop")


def test_stop_strings_across_tokens() -> None:
    text = "größer\n\nUser: no"
    engine = Engine(FakeModel(reply=lambda history: text.encode()[len(history) - 1]))
    ask = Ask(engine, [0], 100, stops=["\nUser:", "Never"])
    engine.submit(ask)
    run(engine)
    assert (ask.text, ask.reason) == ("größer\n", "stop")
    assert len(ask.answer) == len("größer\n\nUser:".encode())


def test_text_held_back_for_a_stop_comes_when_the_answer_ends() -> None:
    engine = Engine(FakeModel(reply=lambda history: b"abcd"[len(history) - 1]))
    ask = Ask(engine, [0], 3, stops=["cd", "bcx"])
    engine.submit(ask)
    run(engine)
    assert (ask.text, ask.reason) == ("abc", "length")


def test_a_failed_step_ends_its_requests_and_no_others() -> None:
    model = FakeModel(max_batch=1)
    engine = Engine(model)
    first, second = Ask(engine, [1, 2]), Ask(engine, [3])
    engine.submit(first)
    engine.submit(second)
    engine.step()
    model.error = KernelError("no luck")
    with pytest.raises(KernelError):
        engine.step()
    for delta in engine.fail(KernelError("no luck")):
        delta.request.deliver(delta)
    engine.scheduler.check()
    run(engine)
    assert [str(delta.error) for delta in first.deltas] == ["no luck"]
    assert second.answer == expected([3], 8)


def test_a_failed_row_ends_its_request_alone() -> None:
    engine = Engine(FakeModel())
    everything = dict.fromkeys(range(300), float("-inf"))
    first = Ask(engine, [1], params=SamplingParams(temperature=0, logit_bias=everything))
    second = Ask(engine, [2])
    engine.submit(first)
    engine.submit(second)
    run(engine)
    assert "bans every token" in str(first.deltas[-1].error)
    assert second.answer == expected([2], 8)


def test_end_tells_everyone() -> None:
    engine = Engine(FakeModel(max_batch=1))
    asks = [Ask(engine, [1, 2]) for _ in range(3)]
    for ask in asks:
        engine.submit(ask)
    engine.step()
    ended = engine.end(CancelledError("closed"))
    assert {delta.request for delta in ended} == set(asks)
    assert not engine.has_work
    assert engine.usage().pages_in_use == 0


def test_stats_count_what_was_done() -> None:
    engine = Engine(FakeModel())
    ask = Ask(engine, list(range(70)), 5)
    engine.submit(ask)
    run(engine)
    again = Ask(engine, [*range(70), *ask.answer, 5], 5)
    engine.submit(again)
    run(engine)
    first, second = ask.deltas[-1].stats, again.deltas[-1].stats
    assert first is not None
    assert second is not None
    assert (first.prompt_tokens, first.cached_tokens, first.generated_tokens) == (70, 0, 5)
    assert (second.prompt_tokens, second.cached_tokens, second.generated_tokens) == (76, 74, 5)
    assert first.time_to_first_token_ms > 0
    assert first.prompt_tokens_per_s > 0 < first.generated_tokens_per_s


class Crowd(RuleBasedStateMachine):
    """Requests come and go; pages add up after each step, and answers are right."""

    @initialize(max_batch=st.integers(1, 40), n_pages=st.integers(4, 9))
    def start(self, max_batch: int, n_pages: int) -> None:
        self.engine = Engine(FakeModel(max_batch=max_batch, n_pages=n_pages))
        self.asks: list[Ask] = []

    @rule(
        prompt=PROMPTS,
        n=st.integers(0, 110),
        priority=st.integers(-1, 1),
        owner=st.sampled_from([None, "a", "b"]),
    )
    def submit(self, prompt: list[int], n: int, priority: int, owner: str | None) -> None:
        self.add(Ask(self.engine, prompt, n, terms=Terms(priority, owner)))

    @precondition(lambda self: self.asks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.asks)).cancel()

    @rule(n=st.integers(1, 30))
    def step(self, n: int) -> None:
        for _ in range(n):
            for delta in self.engine.step():
                delta.request.deliver(delta)
            self.engine.scheduler.check()

    @rule()
    def fail(self) -> None:
        if self.engine.has_work:
            self.engine.model.error = KernelError("out of luck")
            try:
                self.step(1)
            except KernelError as error:
                for delta in self.engine.fail(error):
                    delta.request.deliver(delta)
            self.engine.model.error = None

    def add(self, ask: Ask) -> None:
        self.engine.submit(ask)
        self.asks.append(ask)

    @invariant()
    def answers_are_right(self) -> None:
        for ask in [ask for ask in self.asks if ask.deltas and ask.deltas[-1].is_last]:
            self.asks.remove(ask)
            assert sum(delta.is_last for delta in ask.deltas) == 1
            assert ask.answer == expected(list(ask.prompt), len(ask.answer))
            if not ask.cancelled and ask.reason:
                assert len(ask.answer) == ask.max_tokens

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            run(self.engine)
            self.answers_are_right()
            assert not self.asks
            assert self.engine.usage().pages_in_use == 0


Crowd.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCrowd = pytest.mark.slow(Crowd.TestCase)
