"""Comparing logits, and the float64 reference on real models."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.files.checkpoint import open_checkpoint
from satchel.measure.accuracy import (
    Decoded,
    agreement,
    log_softmax,
    perplexity,
    reference_logits,
)


def logits(n: int = 200, vocab: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, vocab)) * 3


def test_a_divergence_worked_out_by_hand() -> None:
    p, q = np.log([[0.5, 0.5], [0.9, 0.1]]), np.log([[0.25, 0.75], [0.9, 0.1]])
    wanted = 0.5 * math.log(0.5 / 0.25) + 0.5 * math.log(0.5 / 0.75)
    found = agreement(p, q)
    assert found.n == 2
    assert found.max_kl == pytest.approx(wanted)
    assert found.mean_kl == pytest.approx(wanted / 2)
    assert found.median_kl == pytest.approx(wanted / 2)
    assert found.kl_error == pytest.approx(wanted / 2 / math.sqrt(2))
    assert found.top1 == 0.5  # the first row's best is token 0 here and token 1 there


@given(st.floats(-1e4, 1e4))
def test_logits_that_differ_by_a_constant_agree(shift: float) -> None:
    found = agreement(logits(), logits() + shift)
    assert found.top1 == 1
    assert abs(found.max_kl) < 1e-9


def test_noise_costs_half_its_variance() -> None:
    """For small independent noise of variance s2 on each logit, KL is about s2 (1 - sum p2) / 2."""
    clean = logits(n=3000)
    noisy = clean + np.random.default_rng(1).standard_normal(clean.shape) * 0.01
    p = np.exp(log_softmax(clean))
    wanted = 0.01**2 * float((1 - (p * p).sum(axis=-1)).mean()) / 2
    assert agreement(clean, noisy).mean_kl == pytest.approx(wanted, rel=0.1)
    assert 0.98 < agreement(clean, noisy).top1 < 1


def test_shapes_must_be_equal() -> None:
    with pytest.raises(ValueError, match="shapes"):
        agreement(logits(n=3), logits(n=4))


def test_perplexity_of_a_sure_and_of_an_unsure_model() -> None:
    tokens = list(range(40)) * 4
    assert perplexity(np.zeros((160, 40)), tokens) == pytest.approx(40)
    sure = np.full((160, 40), -1e9)
    sure[np.arange(159), tokens[1:]] = 0
    assert perplexity(sure, tokens) == pytest.approx(1)


@pytest.mark.parametrize(
    ("model", "ids", "best"),
    [
        ("smollm2", [504, 3575, 282, 4649, 314], "ĠParis"),  # The capital of France is
        ("gemma3", [2, 811, 236764, 1156, 236764, 1806, 236764], "▁four"),  # one, two, three,
    ],
)
def test_the_reference_knows_what_comes_next(
    model: str, ids: list[int], best: str, request: pytest.FixtureRequest
) -> None:
    checkpoint = open_checkpoint(request.getfixturevalue(model))
    pieces = checkpoint.metadata.get_strings("tokenizer.ggml.tokens")
    found = reference_logits(checkpoint, ids, wanted=[-1])
    assert pieces[int(found[0].argmax())] == best


def test_rows_are_those_of_the_whole(gemma3: Path) -> None:
    decoded = Decoded(open_checkpoint(gemma3))
    for name in ("blk.0.attn_q.weight", "blk.0.ffn_down.weight", "blk.3.attn_v.weight"):
        whole = decoded(name)
        assert (decoded.rows(name, np.array([5, 0, 5])) == whole[[5, 0, 5]]).all()
