"""What was computed before, by whomever, is not computed again, and no one can tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel

import satchel
from satchel.engine.engine import Engine
from satchel.engine.prefix import Node
from satchel.engine.request import Scoring
from satchel.measure.accuracy import sample_text
from satchel.runtime.batch import NO_PAGE, PAGE

WINDOWS = ((None,), (None, 100), (30, None), (70,), (1, 200))


def expected(prompt: Sequence[int], n: int, windows: Sequence[int | None] = (None,)) -> list[int]:
    """The greedy answer, by calling the fake's function and nothing else."""
    model, history = FakeModel(windows=windows), list(prompt)
    for _ in range(n):
        history.append(int(model.logits(history).argmax()))
    return history[len(prompt) :]


def ask(engine: Engine, prompt: Sequence[int], n: int = 4) -> int:
    """Has a prompt answered, checks the answer, and says how many of its tokens were cached."""
    request = Ask(engine, prompt, n)
    engine.submit(request)
    run(engine)
    windows = [group.window for group in engine.model.groups]
    assert request.answer == expected(prompt, n, windows)
    return cached(request)


def cached(request: Ask) -> int:
    stats = request.deltas[-1].stats
    assert stats is not None
    return stats.cached_tokens


def computed(model: FakeModel) -> int:
    return sum(batch.n_tokens for batch in model.batches)


def test_the_same_prompt_again() -> None:
    engine = Engine(FakeModel())
    assert [ask(engine, range(100)) for _ in range(3)] == [0, 99, 99]
    assert engine.usage().pages_in_use == 0
    assert engine.usage().pages_kept == 2


def test_a_beginning_in_the_middle_of_a_page() -> None:
    engine = Engine(FakeModel())
    ask(engine, range(150))
    assert ask(engine, [*range(90), *range(200, 230)]) == 90
    assert ask(engine, [*range(90), *range(200, 240)]) == 120
    assert ask(engine, [5, *range(90)]) == 0
    assert ask(engine, range(150)) == 149


def test_the_next_turn_goes_on_without_copying() -> None:
    model = FakeModel()
    engine = Engine(model)
    first = Ask(engine, range(70), 5)
    engine.submit(first)
    run(engine)
    prompt = [*range(70), *first.answer, 7]
    before = sum(engine.pools[0].holders), model.n_copies
    assert ask(engine, prompt) == 74
    assert (sum(engine.pools[0].holders), model.n_copies) == before


def test_nothing_is_kept_when_that_is_off() -> None:
    engine = Engine(FakeModel(), prefix_cache=False)
    assert [ask(engine, range(100)) for _ in range(2)] == [0, 0]
    assert engine.usage().pages_kept == 0


def test_answers_to_one_prompt_compute_it_once() -> None:
    model = FakeModel(max_batch=32)
    engine = Engine(model)
    asks = [Ask(engine, range(100), 10) for _ in range(8)]
    for request in asks:
        engine.submit(request)
    run(engine)
    assert [request.answer for request in asks] == [expected(range(100), 10)] * 8
    assert [cached(request) for request in asks] == [0, *[99] * 7]
    assert computed(model) == 99 + 8 * 10


def test_who_waits_for_another_holds_no_one_up() -> None:
    model = FakeModel(max_batch=16, n_pages=32)
    engine = Engine(model)
    first, second, other = (Ask(engine, p, 3) for p in (range(200), range(190), [7, 8, 9]))
    for request in (first, second, other):
        engine.submit(request)
    for _ in range(5):
        for delta in engine.step():
            delta.request.deliver(delta)
    assert other.reason == "length"
    assert not second.begun_s
    run(engine)
    assert cached(second) == 189
    assert (first.answer, second.answer) == (expected(range(200), 3), expected(range(190), 3))


def test_who_waited_for_one_that_left_does_it_alone() -> None:
    engine = Engine(FakeModel(max_batch=16))
    first, second = Ask(engine, range(200), 3), Ask(engine, range(200), 3)
    engine.submit(first)
    engine.submit(second)
    for _ in range(6):
        engine.step()
    first.cancel()
    run(engine)
    assert second.answer == expected(range(200), 3)
    assert 64 <= cached(second) <= 96


def test_scores_are_computed_though_they_are_known() -> None:
    model = FakeModel()
    engine = Engine(model)
    ask(engine, range(100))
    scoring = Scoring(range(100), engine.sequence(), lambda _: None, model.vocab_size)
    engine.submit(scoring)
    run(engine)
    for i in (0, 63, 64, 99):
        assert scoring.logits[i].tolist() == model.logits(range(i + 1)).tolist()


def test_what_was_used_longest_ago_goes_first() -> None:
    engine = Engine(FakeModel(context_length=128, n_pages=6))
    first, second, third = ([n, *range(90)] for n in (1, 2, 3))
    assert [ask(engine, p) for p in (first, second, third)] == [0, 0, 0]
    assert ask(engine, first) == 90  # the copy takes the place of the second's end
    assert ask(engine, second) == 64
    assert ask(engine, first) == 90


def test_what_to_evict_is_found_without_looking_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    n, looks = 100, 0
    engine = Engine(FakeModel(context_length=128, n_pages=2 * n, max_batch=64))
    for i in range(n):
        engine.submit(Ask(engine, [i, *range(98)], 1))
    run(engine)
    tree = engine.tree
    can_go = tree._can_go

    def counted(node: Node, group: int) -> bool:
        nonlocal looks
        looks += 1
        return can_go(node, group)

    monkeypatch.setattr(tree, "_can_go", counted)
    assert engine.usage().pages_kept == 2 * n
    while engine.usage().pages_kept:
        assert tree.evict(0)
    assert not tree.evict(0)
    assert looks <= 4 * n


def test_nodes_that_are_gone_are_not_remembered() -> None:
    """Each turn replaces the end that the one before left, and nothing is ever evicted."""
    engine = Engine(FakeModel(context_length=1000, n_pages=16))
    prompt = list(range(10))
    for turn in range(100):
        request = Ask(engine, prompt, 3)
        engine.submit(request)
        run(engine)
        prompt += [*request.answer, turn]
        engine.scheduler.check()
    assert len(engine.tree.oldest[0].heap) <= 2 * len(engine.tree.nodes) < 20


def test_pages_of_no_one_go_before_a_request_has_to_wait() -> None:
    engine = Engine(FakeModel(context_length=128, n_pages=6))
    for n in range(3):
        ask(engine, range(n, 110))
    assert engine.usage().pages_kept == 6
    asks = [Ask(engine, [n] * 90, 20) for n in (200, 201)]
    for request in asks:
        engine.submit(request)
    while engine.has_work:
        for delta in engine.step():
            delta.request.deliver(delta)
        assert not engine.scheduler.waiting
    assert [request.answer for request in asks] == [expected([n] * 90, 20) for n in (200, 201)]


@pytest.mark.parametrize("window", [1, 64, 100])
def test_a_window_holds_what_it_sees_and_no_more(window: int) -> None:
    model = FakeModel(context_length=1000, n_pages=(16, 6), windows=(None, window), max_batch=64)
    engine = Engine(model)
    request = Ask(engine, range(200), 130)
    engine.submit(request)
    most = 0
    while engine.has_work:
        for delta in engine.step():
            delta.request.deliver(delta)
        engine.scheduler.check()
        most = max(most, engine.usage().groups[1].pages_in_use)
    assert request.answer == expected(range(200), 130, (None, window))
    assert most == {1: 1, 64: 2, 100: 3}[window]


def test_a_window_can_be_gone_on_from_where_its_pages_are() -> None:
    model = FakeModel(context_length=1000, n_pages=(64, 12), windows=(None, 100), max_batch=64)
    engine = Engine(model)
    assert ask(engine, range(280), 50) == 0
    assert ask(engine, range(280), 50) == 279  # the pages are there, as no one needed them
    for n in (298, 299):
        assert ask(engine, [n, *range(190)]) == 0
    assert engine.usage().groups[1].pages_kept == 12
    assert engine.usage().groups[0].pages_kept == 14
    answer = expected(range(280), 50, (None, 100))
    assert ask(engine, [*range(280), *answer, 7]) == 329  # it ended there: the window was kept
    assert ask(engine, range(200)) == 0  # no one ever began or ended there


def prompt_of(runs: list[int], rest: list[int]) -> list[int]:
    """A prompt that others are likely to begin like."""
    return [token for token in runs for _ in range(45)] + rest


PROMPTS = st.builds(
    prompt_of,
    st.lists(st.integers(0, 1), max_size=4),
    st.lists(st.integers(0, 3), min_size=1, max_size=30),
)


@settings(max_examples=15, deadline=None)
@given(
    st.sampled_from(WINDOWS),
    st.lists(st.tuples(PROMPTS, st.integers(0, 20)), min_size=2, max_size=6),
    st.integers(1, 64),
    st.integers(4, 12),
)
def test_beside_others_as_alone(
    windows: Sequence[int | None],
    given: list[tuple[list[int], int]],
    max_batch: int,
    n_pages: int,
) -> None:
    engine = Engine(FakeModel(max_batch=max_batch, n_pages=n_pages, windows=windows))
    asks = [Ask(engine, prompt, n) for prompt, n in given]
    for request in asks:
        engine.submit(request)
    run(engine)
    for request in asks:
        assert request.answer == expected(request.prompt, request.max_tokens, windows)
    assert engine.usage().pages_in_use == 0


class Sharing(RuleBasedStateMachine):
    """Requests that begin alike come, go and are cancelled, with few pages for all of them."""

    @initialize(
        windows=st.sampled_from(WINDOWS),
        max_batch=st.integers(1, 64),
        n_pages=st.integers(4, 12),
        reserve=st.integers(0, 3),
    )
    def start(
        self, windows: Sequence[int | None], max_batch: int, n_pages: int, reserve: int
    ) -> None:
        def least(window: int | None) -> int:
            return min(4, (window - 1 + max_batch - 2) // PAGE + 2) if window else 4

        counts = [n_pages if w is None else least(w) + reserve for w in windows]
        self.windows = windows
        self.engine = Engine(FakeModel(max_batch=max_batch, n_pages=counts, windows=windows))
        self.asks: list[Ask] = []
        self.told: list[list[int]] = [[1]]

    @rule(prompt=PROMPTS, n=st.integers(0, 80))
    def submit(self, prompt: list[int], n: int) -> None:
        self.asks.append(Ask(self.engine, prompt, n))
        self.engine.submit(self.asks[-1])

    @rule(data=st.data(), keep=st.integers(1, 250), more=PROMPTS, n=st.integers(0, 40))
    def go_on(self, data: st.DataObject, keep: int, more: list[int], n: int) -> None:
        known = data.draw(st.sampled_from(self.told))
        self.submit([*known[:keep], *more][:250], n)

    @precondition(lambda self: self.asks)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.asks)).cancel()

    @rule(group=st.integers(0, 1))
    def evict(self, group: int) -> None:
        """Of all that can go, the one goes that was used longest ago."""
        if group < len(self.windows):
            tree = self.engine.scheduler.tree
            can_go = [node for node in tree.nodes if tree._can_go(node, group)]
            goes = min(can_go, key=lambda node: node.used[group], default=None)
            assert tree.evict(group) == (goes is not None)
            assert goes is None or goes.pages[group] == NO_PAGE
            self.engine.scheduler.check()

    @rule(n=st.integers(1, 30))
    def step(self, n: int) -> None:
        for _ in range(n):
            for delta in self.engine.step():
                delta.request.deliver(delta)
            self.engine.scheduler.check()

    @invariant()
    def answers_are_right(self) -> None:
        for request in [r for r in self.asks if r.deltas and r.deltas[-1].is_last]:
            self.asks.remove(request)
            assert not request.deltas[-1].error
            assert request.answer == expected(request.prompt, len(request.answer), self.windows)
            self.told.append([*request.prompt, *request.answer])

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            run(self.engine)
            self.answers_are_right()
            assert not self.asks
            assert self.engine.usage().pages_in_use == 0


Sharing.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestSharing = pytest.mark.slow(Sharing.TestCase)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_real_models_cannot_tell(name: str, request: pytest.FixtureRequest) -> None:
    """Prompts longer than Gemma's window, which part in the middle of pages, one after another and
    at once.
    """
    path = request.getfixturevalue(name)
    options: dict[str, Any] = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    with satchel.load(path, threads=2, context=1024, prefix_cache=False) as llm:
        text = llm.tokenize(sample_text()[:9000])
        prompts = [
            text[:600],
            [*text[:550], *text[600:650]],
            text[:620],
            [*text[:70], *text[80:99]],
        ]
        alone = [llm.generate(prompt, **options) for prompt in prompts]
        assert [answer.stats.cached_tokens for answer in alone] == [0] * 4
    with satchel.load(path, threads=2, context=1024) as llm:
        first = [llm.generate(prompt, **options) for prompt in prompts]
        streams = [llm.stream(prompt, **options) for prompt in prompts for _ in range(2)]
        then = [stream.result() for stream in streams]
    assert [answer.tokens for answer in first] == [answer.tokens for answer in alone]
    assert [a.tokens for a in then] == [a.tokens for a in alone for _ in range(2)]
    cached = [answer.stats.cached_tokens for answer in first]
    assert cached[:2] == [0, 550]
    assert cached[2] >= 600  # an answer may say what comes in the text
    assert all(a.stats.cached_tokens == a.stats.prompt_tokens - 1 for a in then)
