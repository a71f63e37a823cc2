"""Endless answers in constant memory: what is forgotten, and that no one else counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel, weight_of

import satchel
from satchel.base.errors import MemoryLimitError, OptionError
from satchel.engine.engine import Engine
from satchel.engine.eviction import Eviction, HeavyHitters, Sinks, read_eviction
from satchel.engine.request import Scoring
from satchel.runtime.batch import PAGE

EVICTIONS = (Sinks(4, 100), Sinks(0, 64), Sinks(70, 130), HeavyHitters(200), HeavyHitters(65))


def model_for(
    eviction: Eviction, *, windows: Sequence[int | None] = (None,), n: int = 12, **more: Any
) -> FakeModel:
    return FakeModel(context_length=eviction.bound, windows=windows, n_pages=n, **more)


def expected(
    prompt: Sequence[int], n: int, eviction: Eviction, windows: Sequence[int | None] = (None,)
) -> list[int]:
    """The greedy answer, token by token, by nothing but the choice of what stays."""
    model = model_for(eviction, windows=windows)
    seen: list[int] = []
    told = list(prompt)
    for i in range(len(prompt) + n - 1):
        if len(seen) == eviction.bound:
            kept = eviction.kept(len(seen), weight_of(np.array(seen)))
            seen = [seen[place] for place in kept]
        seen.append(told[i])
        if i >= len(prompt) - 1:
            told.append(int(model.logits(seen).argmax()))
    return told[len(prompt) :]


class Quick(FakeModel):
    """Says what the length of its view is, and draws nothing."""

    def row(self, seen: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        row = np.zeros(self.vocab_size, np.float32)
        row[len(seen[0]) % self.vocab_size] = 1
        return row


@pytest.mark.parametrize("eviction", EVICTIONS)
def test_what_stays(eviction: Eviction) -> None:
    n = eviction.bound
    mass = np.random.default_rng(0).random(n).astype(np.float32)
    kept = eviction.kept(n, mass).tolist()
    assert kept == sorted(set(kept))
    assert kept[-eviction.recent :] == list(range(n - eviction.recent, n))
    assert len(kept) <= n - PAGE
    if isinstance(eviction, Sinks):
        assert kept[: eviction.sinks] == list(range(eviction.sinks))
        assert len(kept) == eviction.sinks + eviction.window
    else:
        assert isinstance(eviction, HeavyHitters)
        older = kept[: -eviction.recent]
        left = sorted(set(range(n - eviction.recent)) - set(older))
        assert len(kept) == eviction.budget
        assert mass[older].min() > mass[left].max()


@settings(max_examples=12, deadline=None)
@given(
    st.sampled_from(EVICTIONS),
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 250)), min_size=1, max_size=4),
    st.integers(1, 64),
    st.integers(0, 8),
)
def test_beside_others_as_alone(
    eviction: Eviction, asked: list[tuple[int, int]], max_batch: int, more_pages: int
) -> None:
    least = -(-eviction.bound // PAGE)
    engine = Engine(
        model_for(eviction, n=2 * least + more_pages, max_batch=max_batch), eviction=eviction
    )
    asks = [Ask(engine, [i % 7 for i in range(length)], n) for length, n in asked]
    for ask in asks:
        engine.submit(ask)
    run(engine)
    for ask in asks:
        assert ask.answer == expected(ask.prompt, ask.max_tokens, eviction)
        stats = ask.deltas[-1].stats
        assert stats is not None
        n_seen = stats.prompt_tokens + stats.generated_tokens - 1
        assert n_seen - eviction.bound <= stats.dropped_tokens < max(1, n_seen)
    assert engine.usage().pages_in_use == 0


@pytest.mark.parametrize("eviction", [Sinks(4, 100), HeavyHitters(200)])
def test_layers_with_windows_forget_with_the_others(eviction: Eviction) -> None:
    windows = (50, None, 100)
    engine = Engine(model_for(eviction, windows=windows, max_batch=32), eviction=eviction)
    ask = Ask(engine, range(150), 200)
    engine.submit(ask)
    run(engine)
    assert ask.answer == expected(range(150), 200, eviction, windows)


def test_a_beginning_is_shared_until_something_is_forgotten() -> None:
    eviction = Sinks(4, 200)
    engine = Engine(model_for(eviction, n=24), eviction=eviction)
    for cached in (0, 256, 256):
        ask = Ask(engine, [i % 290 for i in range(600)], 5)
        engine.submit(ask)
        run(engine)
        stats = ask.deltas[-1].stats
        assert stats is not None
        assert stats.cached_tokens == cached
        assert ask.answer == expected(ask.prompt, 5, eviction)


def test_scores_of_a_text_that_is_longer_than_the_cache() -> None:
    eviction = Sinks(4, 100)
    model = model_for(eviction)
    engine = Engine(model, eviction=eviction)
    tokens = [i % 290 for i in range(400)]
    scoring = Scoring(tokens, engine.sequence(), lambda _: None, model.vocab_size)
    engine.submit(scoring)
    run(engine)
    for n in (1, 100, 250, 399):
        assert [int(scoring.logits[n - 1].argmax())] == expected(tokens[:n], 1, eviction)


@pytest.mark.slow
@pytest.mark.parametrize("eviction", [Sinks(4, 252), HeavyHitters(256)])
def test_fifty_thousand_tokens_in_constant_memory(eviction: Eviction) -> None:
    model = Quick(context_length=eviction.bound, windows=(None, 100), n_pages=16)
    engine = Engine(model, eviction=eviction)
    engine.submit(ask := Ask(engine, range(100), 50_000))
    held: list[tuple[int, ...]] = []
    while engine.has_work:
        for delta in engine.step():
            delta.request.deliver(delta)
        held.append(tuple(pool.n_held for pool in engine.pools))
    most = -(-eviction.bound // PAGE)
    assert max(full for full, _ in held[1000:]) == most
    assert max(window for _, window in held) == 3
    assert min(full for full, _ in held[1000:-1]) >= 256 // PAGE
    stats = ask.deltas[-1].stats
    assert stats is not None
    assert stats.generated_tokens == 50_000
    assert 50_099 - eviction.bound <= stats.dropped_tokens <= 50_099 - 256


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ((4, None, None), "need a window"),
        ((-1, 100, None), "sinks: -1 is less than 0"),
        ((0, 0, None), "window: 0 is less than 1"),
        ((4, 100, "h2o:100"), "two ways to forget"),
        ((None, None, "h2o"), "not of the form h2o:BUDGET"),
        ((None, None, "lru:100"), "not of the form h2o:BUDGET"),
        ((None, None, "h2o:1"), "not of the form h2o:BUDGET"),
    ],
)
def test_what_makes_no_sense(
    asked: tuple[int | None, int | None, str | None], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        read_eviction(*asked)


def test_what_is_asked_for() -> None:
    assert read_eviction(None, None, None) is None
    assert read_eviction(4, 1000, None) == Sinks(4, 1000)
    assert read_eviction(None, 1000, None) == Sinks(0, 1000)
    assert read_eviction(None, None, "h2o:1024") == HeavyHitters(1024)


def test_what_a_model_does_not_allow() -> None:
    eviction = Sinks(4, 100)
    with pytest.raises(OptionError, match=r"only the last 100 tokens always stay, but .* see 200"):
        Engine(model_for(eviction, windows=(200, None)), eviction=eviction)
    eviction = HeavyHitters(400)
    with pytest.raises(OptionError, match="forgets by itself"):
        Engine(model_for(eviction, windows=(100,)), eviction=eviction)
    with pytest.raises(MemoryLimitError, match="takes 16 pages, and there are 12"):
        Engine(model_for(HeavyHitters(360)), eviction=HeavyHitters(360))


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"sinks": 4, "window": 60}, {"evict": "h2o:64"}], ids=str)
def test_a_real_model_goes_on(smollm2: Path, how: dict[str, Any]) -> None:
    """As without forgetting until the cache is full; then the same, whoever else is there."""
    asked: dict[str, Any] = {"max_tokens": 200, "temperature": 0, "ignore_eos": True}
    prompts = ["Once upon a time", "The lighthouse keeper said that", "2, 3, 5, 7, 11, 13, 17, 19,"]
    with satchel.load(smollm2, threads=1, context=512) as llm:
        whole = [llm.generate(prompt, **asked).tokens for prompt in prompts]
    with satchel.load(smollm2, threads=1, **how) as llm:
        alone = [llm.generate(prompt, **asked) for prompt in prompts]
        bound = llm.context_length
    for prompt, full, answer in zip(prompts, whole, alone, strict=True):
        n_before = bound - answer.stats.prompt_tokens
        assert answer.tokens[:n_before] == full[:n_before], prompt
        assert answer.stats.dropped_tokens > 0
    with satchel.load(smollm2, threads=3, **how) as llm:
        streams = [llm.stream(prompt, **asked) for prompt in prompts]
        assert [stream.result().tokens for stream in streams] == [a.tokens for a in alone]
