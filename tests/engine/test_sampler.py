"""The sampler against a plain reading of each filter, and what it promises of speed and order."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.engine.fake import ranks_of

from satchel.base.errors import FileFormatError, OptionError
from satchel.engine.filters import ENOUGH, Candidates, top_p
from satchel.engine.params import SamplingParams
from satchel.engine.rows import Logits, largest, strip_maxima
from satchel.engine.sampler import Sampler, draw
from satchel.runtime.batch import STRIP

Row = npt.NDArray[np.float32]
LOGITS = st.integers(-40, 40).map(lambda n: n / 4)  # coarse, so that many are equal
ROWS = arrays(np.float32, st.integers(1, 5 * STRIP), elements=LOGITS)
PARAMS: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0.1, 0.8, 1.0, 3.0]),
    "top_k": st.integers(0, 70),
    "top_p": st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    "min_p": st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    "repeat_penalty": st.sampled_from([0.5, 1.0, 1.3]),
    "repeat_last_n": st.sampled_from([-1, 0, 3, 64]),
    "presence_penalty": st.sampled_from([0.0, 0.5]),
    "frequency_penalty": st.sampled_from([0.0, -0.5]),
}
SAMPLING = st.fixed_dictionaries(PARAMS).map(lambda values: SamplingParams(**values, seed=1))


def plain_bias(row: Row, history: Sequence[int], p: SamplingParams) -> list[float]:
    logits = [float(x) + p.logit_bias.get(i, 0) for i, x in enumerate(row)]
    recent = list(history) if p.repeat_last_n < 0 else list(history)[-p.repeat_last_n :]
    if p.repeat_last_n == 0:
        recent = []
    for token in set(recent):
        x = logits[token]
        x = x / p.repeat_penalty if x > 0 else x * p.repeat_penalty
        logits[token] = x - p.presence_penalty - p.frequency_penalty * recent.count(token)
    return logits


def plain_filters(logits: list[float], p: SamplingParams) -> list[int]:
    """The ids that are left, the most likely first."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if p.top_k:
        ids = ids[: p.top_k]
    weights = [math.exp(logits[i] - logits[ids[0]]) for i in ids]
    total, reached, first = math.fsum(weights), 0.0, len(ids)
    for n, weight in enumerate(weights):
        reached += weight
        if reached >= p.top_p * total - 1e-12:
            first = n + 1
            break
    if p.top_p < 1:
        ids = ids[:first]
    return [i for i in ids if math.exp(logits[i] - logits[ids[0]]) >= p.min_p]


@given(ROWS, SAMPLING, st.data())
def test_chooses_among_what_a_plain_reading_leaves(
    row: Row, params: SamplingParams, data: st.DataObject
) -> None:
    history = data.draw(st.lists(st.integers(0, len(row) - 1), max_size=8))
    bias = data.draw(st.dictionaries(st.integers(0, len(row) - 1), LOGITS, max_size=3))
    params = dataclasses.replace(params, logit_bias=bias)
    sampler = Sampler(params, len(row))
    before = row.copy()
    biased, maxima = sampler.bent(row, history, strip_maxima(row))
    np.testing.assert_array_equal(maxima, strip_maxima(biased))
    plain = plain_bias(row, history, params)
    np.testing.assert_allclose(biased, plain, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(row, before)
    found = sampler.filtered(biased, maxima)
    ids = found.ids
    np.testing.assert_array_equal(found.logits, biased[ids])
    left = plain_filters([float(x) for x in biased], params)
    assert sorted(ids) == sorted(left)
    if params.top_p < 1 or sampler.is_ranked:
        assert list(ids) == left
    assert sampler.choose(row, history) in left


@given(ROWS)
def test_greedy_is_the_lowest_of_the_highest(row: Row) -> None:
    sampler = Sampler(SamplingParams(temperature=0), len(row))
    assert sampler.choose(row, []) == min(range(len(row)), key=lambda i: (-row[i], i))


def test_nothing_to_bias_copies_nothing() -> None:
    row = np.zeros(10, np.float32)
    maxima = strip_maxima(row)
    same, tops = Sampler(SamplingParams(), 10).bent(row, [1, 2, 3], maxima)
    assert same is row
    assert tops is maxima


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 9000), st.integers(1, 3000), st.booleans())
def test_the_largest_are_those_that_sorting_finds(seed: int, n: int, k: int, coarse: bool) -> None:
    row = np.random.default_rng(seed).normal(size=n).astype(np.float32)
    row = np.round(row) if coarse else row
    k = min(k, n)
    ids, kept = largest(row, strip_maxima(row), k)
    assert list(ids) == list(np.argsort(-row, kind="stable")[:k])
    assert list(kept) == list(row[ids])


@settings(max_examples=50)
@given(st.integers(0, 2**32), st.integers(1, 3 * ENOUGH), st.floats(0, 1))
def test_top_p_takes_the_first_of_those_that_sorting_finds(seed: int, n: int, part: float) -> None:
    logits = np.round(np.random.default_rng(seed).normal(size=n), 1)
    c = Candidates(np.arange(n), logits, is_ranked=False)
    enough = part * c.total
    found = top_p(c, enough)
    assert list(found.ids) == list(np.argsort(-logits, kind="stable")[: len(found.ids)])
    assert len(found.ids) == n or c.weights[found.ids].sum() >= enough * (1 - 1e-12)
    assert len(found.ids) == 1 or c.weights[found.ids[:-1]].sum() < enough * (1 + 1e-12)


@given(arrays(np.float32, st.integers(1, 300), elements=st.sampled_from([0, 1, np.nan, -np.inf])))
def test_maxima_of_strips(row: Row) -> None:
    want = [row[i : i + STRIP].max() for i in range(0, len(row), STRIP)]
    np.testing.assert_array_equal(strip_maxima(row), np.array(want))


@pytest.mark.parametrize("temperature", [0, 1])
def test_maxima_tell_where_to_look(temperature: float) -> None:
    """A row is read only where its maxima say that something is."""
    row = np.random.default_rng(0).normal(size=500).astype(np.float32)
    row[[130, 140]] = [50, 49]
    hidden = row.copy()
    hidden[400] = 90
    sampler = Sampler(SamplingParams(temperature=temperature, top_k=2, seed=1), 500)
    assert sampler.choose(hidden, [], strip_maxima(row)) in (130, 140)


@given(st.integers(0, 2**32), SAMPLING, st.sampled_from([-1.0, 0.0, 0.7]), st.booleans())
def test_ranks_that_are_known_change_nothing(
    seed: int, params: SamplingParams, temperature: float, coarse: bool
) -> None:
    params = dataclasses.replace(params, temperature=temperature)
    rows = np.random.default_rng(seed).normal(size=(4, 300)).astype(np.float32) * 3
    rows = np.round(rows) if coarse else rows
    rows[3, 7] = rows[2].max() + 1
    plain, quick = Sampler(params, 300), Sampler(params, 300)
    found = Logits(rows, np.array([strip_maxima(row) for row in rows]), ranks_of(rows))
    for place, row in enumerate(rows):
        assert quick.pick(found, place, [7, 8]) == plain.choose(row, [7, 8])
        found.ranked[0][place, 0] = -1  # they are not known after all
        assert quick.pick(found, place, [7, 8]) == plain.choose(row, [7, 8])


def test_known_ranks_spare_a_look_at_the_row() -> None:
    rows, maxima = np.zeros((1, 300), np.float32), np.zeros((1, 5), np.float32)
    ranked = np.arange(64, dtype=np.int32)[None, ::-1], np.zeros((1, 64), np.float32)
    for params in (SamplingParams(temperature=0), SamplingParams(top_k=1)):
        assert Sampler(params, 300).pick(Logits(rows, maxima, ranked), 0, []) == 63


def test_draws_follow_the_temperature() -> None:
    row = np.array([2, 1, 0, -1], np.float32)
    params = SamplingParams(temperature=2, top_k=0, top_p=1, min_p=0, seed=7)
    sampler = Sampler(params, 4)
    counts = np.bincount([sampler.choose(row, []) for _ in range(20_000)], minlength=4)
    weights = np.exp(row / 2)
    np.testing.assert_allclose(counts / 20_000, weights / weights.sum(), atol=0.015)


@given(arrays(np.float64, st.integers(1, 20), elements=st.sampled_from([0.0, 1e-300, 0.1, 1.0])))
def test_draws_never_what_weighs_nothing(weights: npt.NDArray[np.float64]) -> None:
    if weights.sum() > 0:
        for random in (0, 1, 2**63, 2**64 - 1):
            assert weights[draw(weights, random)] > 0


def test_the_same_seed_draws_the_same_and_others_do_not() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 500)).astype(np.float32)

    def picks(seed: int | None) -> list[int]:
        sampler = Sampler(SamplingParams(seed=seed), 500)
        return [sampler.choose(row, []) for row in rows]

    assert picks(1) == picks(1)
    assert len({tuple(picks(seed)) for seed in (1, 2, None, None)}) == 4


def test_the_numbers_behind_a_seed_stay_the_same() -> None:
    row = np.zeros(1000, np.float32)
    sampler = Sampler(SamplingParams(seed=42, top_k=0, top_p=1, min_p=0), 1000)
    assert [sampler.choose(row, []) for _ in range(4)] == [773, 438, 858, 697]


def test_bans_hold_at_any_temperature() -> None:
    row = np.array([5, 4, 3], np.float32)
    for temperature in (0, 1e-310, 1, 1e300):
        params = SamplingParams(
            temperature=temperature, logit_bias={0: -math.inf}, top_k=0, top_p=1, min_p=0, seed=1
        )
        assert Sampler(params, 3).choose(row, []) in (1, 2)


def test_a_tiny_temperature_is_greedy() -> None:
    row = np.array([1, 3, 2], np.float32)
    assert Sampler(SamplingParams(temperature=1e-310, seed=1), 3).choose(row, []) == 1


def test_everything_banned() -> None:
    params = SamplingParams(logit_bias={0: -math.inf, 1: -math.inf})
    with pytest.raises(OptionError, match="bans every token"):
        Sampler(params, 2).choose(np.zeros(2, np.float32), [])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_no_numbers(bad: float, temperature: float) -> None:
    row = np.array([0, bad, 1], np.float32)
    with pytest.raises(FileFormatError, match="damaged"):
        Sampler(SamplingParams(temperature=temperature), 3).choose(row, [])


@pytest.mark.parametrize(
    ("field", "value", "range_"),
    [
        ("temperature", math.nan, "a number"),
        ("temperature", "hot", "a number"),
        ("temperature", math.inf, "a number"),
        ("top_k", -1, "a whole number of 0 or more"),
        ("top_k", 1.5, "a whole number"),
        ("top_k", True, "a whole number"),
        ("top_p", 1.01, "a number from 0 to 1"),
        ("min_p", -0.1, "a number from 0 to 1"),
        ("repeat_penalty", 0, "a number above 0"),
        ("repeat_last_n", -2, "a whole number of -1 or more"),
        ("presence_penalty", None, "a number"),
        ("frequency_penalty", math.nan, "a number"),
        ("seed", -1, "a whole number from 0 to 18446744073709551615"),
        ("seed", 2**64, "a whole number"),
        ("logit_bias", {1: math.nan}, "not a token id and a number"),
        ("logit_bias", {1: math.inf}, "not a token id and a number"),
        ("logit_bias", {"a": 1.0}, "not a token id and a number"),
    ],
)
def test_bad_values_are_named_with_their_range(field: str, value: Any, range_: str) -> None:
    with pytest.raises(OptionError, match=rf"^{field}: .*{range_}"):
        SamplingParams(**{field: value})


def test_a_bias_for_a_token_that_does_not_exist() -> None:
    with pytest.raises(OptionError, match="there is no token 7; ids are 0 to 6"):
        Sampler(SamplingParams(logit_bias={7: 1.0}), 7)


@pytest.mark.parametrize("spread", [0.01, 1.0, 5.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.999])
def test_top_p_alone_over_a_wide_row(spread: float, top_p: float) -> None:
    row = np.random.default_rng(0).normal(scale=spread, size=5000).astype(np.float32)
    params = SamplingParams(top_k=0, min_p=0, top_p=top_p)
    ids = Sampler(params, 5000).filtered(row, strip_maxima(row)).ids
    assert list(ids) == plain_filters([float(x) for x in row], params)
