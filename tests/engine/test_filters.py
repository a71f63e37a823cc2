"""Each filter against llama.cpp's own (golden/make_filters.py), and what the peers don't settle."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.engine.golden.make_filters import TINY

from satchel.base.errors import OptionError
from satchel.engine import filters
from satchel.engine.filters import Candidates
from satchel.engine.params import SamplingParams
from satchel.engine.penalties import Dry, common_lengths
from satchel.engine.rows import strip_maxima
from satchel.engine.sampler import Sampler, tempered

Row = npt.NDArray[np.float32]
FILE = Path(__file__).parent / "golden" / "filters.jsonl"
FIRST, *LINES = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
ROWS: list[Row] = [np.array(row, np.float32) for row in FIRST["rows"]]
OFF = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0, "seed": 1}
FLOATS = st.floats(-30, 30, width=32)


def letter(token: int) -> bytes:
    return bytes([token])


def named(case: dict[str, Any]) -> str:
    return "-".join(f"{name}={value}" for name, value in case["params"].items())[:60]


@pytest.mark.parametrize("case", [line for line in LINES if "params" in line], ids=named)
def test_leaves_what_llama_cpp_leaves(case: dict[str, Any]) -> None:
    row = ROWS[case["row"]]
    sampler = Sampler(SamplingParams(**(OFF | case["params"])), len(row), piece=letter)
    found = sampler.filtered(*sampler.bent(row, FIRST["history"], strip_maxima(row)))
    weights = tempered(found, sampler.temperature(found))
    pairs = zip(found.ids.tolist(), (weights / weights.sum()).tolist(), strict=True)
    chances = {token: chance for token, chance in pairs if chance > TINY}
    kept = {int(token): chance for token, chance in case["kept"].items()}
    assert sorted(chances) == sorted(kept)
    assert chances == pytest.approx(kept, rel=2e-5)


def bits_for(ids: list[int], weights: list[float], token: int) -> int:
    """Random bits that lead to a token."""
    below = math.fsum(w for i, w in zip(ids, weights, strict=True) if i < token)
    middle = below + weights[ids.index(token)] / 2
    return int(middle / math.fsum(weights) * 2**64)


@pytest.mark.parametrize("case", [line for line in LINES if "steps" in line])
def test_mirostat_learns_as_llama_cpp_does(case: dict[str, Any]) -> None:
    """Whatever is drawn there is drawn here: then the same tokens are left the next time."""
    steps = case.pop("steps")
    sampler = Sampler(SamplingParams(**OFF, mirostat=2, **case), len(ROWS[0]))
    for step in steps:
        row = ROWS[step["row"]]
        whole = Candidates(np.arange(len(row)), row.astype(np.float64), is_ranked=False)
        left = filters.surprising(whole, sampler.mu)
        kept = {int(token): chance for token, chance in step["kept"].items()}
        assert left.ids.tolist() == sorted(kept)
        chances = (left.weights / left.total).tolist()
        assert chances == pytest.approx(list(kept.values()), rel=2e-5)
        sampler.bits = [bits_for(left.ids.tolist(), chances, step["selected"])]
        assert sampler.choose(row, []) == step["selected"]


@given(
    arrays(np.float32, st.integers(1, 200), elements=FLOATS | st.just(-np.inf)),
    st.fixed_dictionaries(
        {
            "typical_p": st.sampled_from([0.0, 0.2, 0.999, 1.0]),
            "top_n_sigma": st.sampled_from([-1.0, 0.01, 1.0]),
            "xtc_probability": st.sampled_from([0.0, 0.5, 1.0]),
            "xtc_threshold": st.sampled_from([0.0, 0.1, 1.0]),
            "dynatemp_range": st.sampled_from([0.0, 0.5, 3.0]),
            "temperature": st.sampled_from([-1.0, 0.0, 0.7]),
            "top_k": st.sampled_from([0, 1, 40]),
            "top_p": st.sampled_from([0.5, 1.0]),
        }
    ),
)
def test_some_token_that_is_possible_is_always_left(row: Row, params: dict[str, Any]) -> None:
    row[0] = max(row[0], 0)
    for seed in (1, 2):
        token = Sampler(SamplingParams(**params, seed=seed), len(row)).choose(row, [])
        assert row[token] > -math.inf


@given(
    arrays(np.float32, st.integers(1, 200), elements=FLOATS),
    st.sampled_from([0.1, 1.0]),
    st.sampled_from([0.0, 0.5, 6.0]),
)
def test_mirostat_chooses_what_is_possible(row: Row, eta: float, tau: float) -> None:
    params = SamplingParams(mirostat=2, mirostat_eta=eta, mirostat_tau=tau, seed=3)
    sampler = Sampler(params, len(row))
    for _ in range(5):
        assert 0 <= sampler.choose(row, []) < len(row)
        assert math.isfinite(sampler.mu)


def test_greedy_takes_the_likeliest_that_a_filter_leaves() -> None:
    row = np.array([0, 3, 2.5, -4], np.float32)
    assert Sampler(SamplingParams(temperature=0), 4).choose(row, []) == 1
    often = SamplingParams(temperature=0, xtc_probability=1, min_p=0, top_p=1)
    assert Sampler(often, 4).choose(row, []) == 2


def test_xtc_comes_as_often_as_it_is_asked_to() -> None:
    row = np.array([3, 2.9, -9], np.float32)
    params = SamplingParams(temperature=0, xtc_probability=0.3, seed=1)
    sampler = Sampler(params, 3)
    taken = [sampler.choose(row, []) for _ in range(2000)]
    assert taken.count(1) / 2000 == pytest.approx(0.3, abs=0.04)


@given(st.lists(st.integers(0, 2), max_size=30))
def test_common_lengths(items: list[int]) -> None:
    want: list[int] = []
    for i in range(len(items)):
        pairs = zip(items[i:], items, strict=False)
        want.append(sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    assert common_lengths(items) == want


@given(
    st.lists(st.integers(0, 3), max_size=24), st.integers(0, 4), st.sampled_from(["", "c", "bc"])
)
def test_repetitions_are_those_of_a_plain_reading(
    tokens: list[int], allowed: int, breaker: str
) -> None:
    """Texts of the tokens: a, bc, b, c."""
    texts = [b"a", b"bc", b"b", b"c"]
    breakers = [breaker] if breaker else []
    params = SamplingParams(dry_allowed_length=allowed, dry_sequence_breakers=breakers)
    found = Dry(params, texts.__getitem__).repetitions(tokens)

    def breaks_at(end: int) -> bool:
        before = b"".join(texts[t] for t in tokens[: end - 1])
        whole = before + texts[tokens[end - 1]]
        return any(whole.find(b.encode(), max(0, len(before) - len(b) + 1)) >= 0 for b in breakers)

    limit = len(tokens) - max((i for i in range(1, len(tokens) + 1) if breaks_at(i)), default=0)
    want: dict[int, int] = {}
    for at in range(1, len(tokens)):
        length = 0
        while length < min(at, limit) and tokens[at - 1 - length] == tokens[-1 - length]:
            length += 1
        if length >= allowed and len(tokens) > allowed and limit >= allowed:
            want[tokens[at]] = max(length, want.get(tokens[at], 0))
    assert found == want


def test_a_penalty_beyond_all_numbers_bans_nothing() -> None:
    params = SamplingParams(dry_multiplier=1e300, dry_base=1e6, temperature=0)
    sampler = Sampler(params, 3, piece=letter)
    assert sampler.choose(np.array([0, 9, 1], np.float32), [1] * 60) == 2
    assert sampler.choose(np.array([0], np.float32), [0] * 60) == 0


def test_dry_takes_what_goes_on_with_a_repetition_down() -> None:
    row = np.array([0, 9, 8, 0], np.float32)
    history = [3, 2, 1, 0, 3, 2]  # 1 would go on with 3, 2
    for multiplier, token in ((0.0, 1), (0.5, 1), (2.0, 2)):
        params = SamplingParams(dry_multiplier=multiplier, temperature=0)
        assert Sampler(params, 4, piece=letter).choose(row, history) == token


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("typical_p", 1.5, "a number from 0 to 1"),
        ("top_n_sigma", math.nan, "a number"),
        ("xtc_probability", -0.1, "a number from 0 to 1"),
        ("xtc_threshold", 2, "a number from 0 to 1"),
        ("dynatemp_range", -1, "a number of 0 or more"),
        ("dynatemp_exponent", "1", "a number of 0 or more"),
        ("dry_multiplier", -1, "a number of 0 or more"),
        ("dry_base", 0.5, "a number of 1 or more"),
        ("dry_allowed_length", 1.5, "a whole number of 0 or more"),
        ("dry_penalty_last_n", -2, "a whole number of -1 or more"),
        ("dry_sequence_breakers", "x", "not a list of texts"),
        ("dry_sequence_breakers", ["a", ""], "'' is not a text of one character or more"),
        ("mirostat", 1, "1 is neither 0 .* nor 2"),
        ("mirostat_tau", -1, "a number of 0 or more"),
        ("mirostat_eta", math.inf, "a number of 0 or more"),
    ],
)
def test_bad_values_are_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=rf"^{field}: .*{message}"):
        SamplingParams(**{field: value})


@pytest.mark.parametrize(
    "other",
    [{"top_k": 7}, {"min_p": 0.1}, {"typical_p": 0.9}, {"top_n_sigma": 1}, {"dynatemp_range": 1}],
)
def test_mirostat_and_a_filter_can_not_both_be_honoured(other: dict[str, Any]) -> None:
    (name,) = other
    with pytest.raises(OptionError, match=rf"^{name}: mirostat takes its place"):
        SamplingParams(mirostat=2, **other)
    SamplingParams(mirostat=2, top_k=0, top_p=1, min_p=0.05)
