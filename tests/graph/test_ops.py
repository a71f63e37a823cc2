"""Each op's meaning against a second, plainer reading of its definition, and its shape rule."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.graph.graphs import POSITIONS, TOKENS

from satchel.graph import OPS, Node, Scaling, ShapeError, frequencies, make, op, weight_node

Array = NDArray[Any]


def numbers(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def mean(name: str, *arrays: Array, **attrs: object) -> Array:
    return OPS[name].meaning(*arrays, **attrs)


def test_embed_takes_rows() -> None:
    table = numbers(5, 3)
    assert (mean("embed", table, np.array([4, 0, 4])) == table[[4, 0, 4]]).all()


def test_linear_multiplies_rows() -> None:
    x, weight, bias = numbers(2, 3), numbers(4, 3, seed=1), numbers(4, seed=2)
    for t in range(2):
        for row in range(4):
            product = sum(x[t, i] * weight[row, i] for i in range(3))
            assert mean("linear", x, weight)[t, row] == pytest.approx(product)
            assert mean("linear", x, weight, bias)[t, row] == pytest.approx(product + bias[row])


def test_rms_norm_makes_unit_rows() -> None:
    x, weight = numbers(2, 3, 4), numbers(4, seed=1)
    y = mean("rms_norm", x, np.ones(4), eps=0.0)
    np.testing.assert_allclose((y * y).mean(axis=-1), 1)
    np.testing.assert_allclose(mean("rms_norm", x, weight, eps=0.0), y * weight)
    zero = mean("rms_norm", np.zeros((1, 4)), weight, eps=1e-6)
    assert (zero == 0).all()
    assert mean("rms_norm", np.full((1, 4), 3.0), np.ones(4), eps=16.0)[0, 0] == pytest.approx(0.6)


def test_heads_split_and_join() -> None:
    x = numbers(3, 8)
    heads = mean("split_heads", x, n=2)
    assert heads.shape == (3, 2, 4)
    assert (heads[1, 1] == x[1, 4:]).all()
    assert (mean("join_heads", heads) == x).all()


@pytest.mark.parametrize("name", ["silu", "gelu", "softcap", "scale"])
@pytest.mark.parametrize("value", [-800.0, -3.0, -1e-3, 0.0, 0.5, 4.0, 800.0])
def test_activations(name: str, value: float) -> None:
    cube = math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)
    wanted, attrs = {
        "silu": (value / (1 + math.exp(-value)) if value > -700 else 0.0, {}),
        "gelu": (0.5 * value * (1 + math.tanh(cube)), {}),
        "softcap": (30 * math.tanh(value / 30), {"cap": 30.0}),
        "scale": (value * -1.5, {"by": -1.5}),
    }[name]
    got = mean(name, np.array([[value]]), **attrs)
    assert got[0, 0] == pytest.approx(wanted, rel=1e-12, abs=1e-300)


def test_add_mul_and_pick() -> None:
    x, y = numbers(4, 3), numbers(4, 3, seed=1)
    assert (mean("add", x, y) == x + y).all()
    assert (mean("mul", x, y) == x * y).all()
    assert (mean("pick", x, np.array([3, 1])) == x[[3, 1]]).all()


@pytest.mark.parametrize("pairs", ["adjacent", "halves"])
@pytest.mark.parametrize("dims", [4, 8])
def test_rope_turns_pairs_as_complex_numbers(pairs: str, dims: int) -> None:
    x, positions = numbers(3, 2, 8), np.array([0, 5, 1000])
    factors = np.array([1.0, 2.0, 8.0, 8.0])[: dims // 2]
    attrs = {"theta": 500.0, "dims": dims, "pairs": pairs, "scale": 0.25}
    y = mean("rope", x, positions, factors, **attrs)
    for i in range(dims // 2):
        a, b = (2 * i, 2 * i + 1) if pairs == "adjacent" else (i, i + dims // 2)
        angle = positions * 0.25 * 500.0 ** (-2 * i / dims) / factors[i]
        turned = (x[..., a] + 1j * x[..., b]) * np.exp(1j * angle)[:, None]
        np.testing.assert_allclose(y[..., a] + 1j * y[..., b], turned, rtol=1e-10)
    assert (y[..., dims:] == x[..., dims:]).all()
    assert (y[0] == x[0]).all()


def test_yarn_keeps_fast_pairs_and_slows_the_slow_ones() -> None:
    yarn = Scaling(1 / 4, ext_factor=1.0, orig_context=4096)
    plain = frequencies(128, 10000.0, Scaling())
    ratio = frequencies(128, 10000.0, yarn) / plain
    turns = 4096 * plain / (2 * math.pi)  # within the context of training
    assert (ratio[turns > 40] == 1).all()
    np.testing.assert_allclose(ratio[turns < 0.9], 1 / 4)
    assert (np.diff(ratio) <= 1e-12).all()
    assert yarn.magnitude == pytest.approx(1 + 0.1 * math.log(4))
    assert Scaling(1 / 4, attn_factor=1.5).magnitude == 1.5


def attend(q: Array, k: Array, v: Array, window: int | None, softcap: float | None) -> Array:
    """Attention, one score at a time."""
    out = np.zeros((*q.shape[:2], v.shape[2]))
    for t in range(len(q)):
        for head in range(q.shape[1]):
            kv = head // (q.shape[1] // k.shape[1])
            seen = [s for s in range(t + 1) if window is None or t - s < window]
            scores = [float(q[t, head] @ k[s, kv]) * 0.3 for s in seen]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            weights = [math.exp(score) for score in scores]
            for s, weight in zip(seen, weights, strict=True):
                out[t, head] += v[s, kv] * weight / sum(weights)
    return out


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("softcap", [None, 0.7])
def test_attention_mixes_what_it_sees(
    kv_heads: int, window: int | None, softcap: float | None
) -> None:
    q, k, v = numbers(7, 4, 6), numbers(7, kv_heads, 6, seed=1), numbers(7, kv_heads, 5, seed=2)
    attrs = {"cache": 0, "scale": 0.3, "window": window, "softcap": softcap}
    got = mean("attention", q, k, v, np.arange(7), **attrs)
    np.testing.assert_allclose(got, attend(q, k, v, window, softcap), rtol=1e-10)


def test_large_scores_do_not_overflow() -> None:
    q = np.full((2, 1, 4), 1e4)
    attrs = {"cache": 0, "scale": 1.0, "window": None, "softcap": None}
    assert np.isfinite(mean("attention", q, q, q, np.arange(2), **attrs)).all()


@given(st.sampled_from(["silu", "gelu", "rms_norm", "scale", "softcap", "linear"]))
def test_the_type_of_the_inputs_rules(name: str) -> None:
    attrs: dict[str, object] = {"rms_norm": {"eps": 1e-5}, "scale": {"by": 2.0}}.get(name, {})
    attrs = {"cap": 5.0} if name == "softcap" else attrs
    for dtype in (np.float32, np.float64):
        x = numbers(2, 4).astype(dtype)
        more = {"rms_norm": [np.ones(4, dtype)], "linear": [np.ones((3, 4), dtype)]}.get(name, [])
        assert mean(name, x, *more, **attrs).dtype == dtype


def leaf(*shape: int | str) -> Node:
    return weight_node("w", tuple(shape), "F32")  # any shape will do


X, HEADS = leaf("tokens", 8), leaf("tokens", 2, 4)
SEE: dict[str, Any] = {"cache": 0, "scale": 1.0, "window": None, "softcap": None}
TURN: dict[str, Any] = {"theta": 1e4, "dims": 4, "pairs": "halves"}


@pytest.mark.parametrize(
    ("name", "inputs", "attrs"),
    [
        ("embed", [leaf(5), TOKENS], {}),
        ("linear", [X, leaf(5, 9)], {}),
        ("linear", [X, leaf(5, 8), leaf(4)], {}),
        ("linear", [X], {}),
        ("rms_norm", [X, leaf(7)], {"eps": 1e-5}),
        ("rms_norm", [X, leaf(8)], {}),
        ("rms_norm", [X, leaf(8)], {"eps": 1e-5, "bias": 1}),
        ("split_heads", [X], {"n": 3}),
        ("join_heads", [X], {}),
        ("rope", [X, POSITIONS], TURN),
        ("rope", [HEADS, POSITIONS], {**TURN, "dims": 6}),
        ("rope", [HEADS, POSITIONS], {**TURN, "dims": 3}),
        ("rope", [HEADS, POSITIONS], {**TURN, "pairs": "thirds"}),
        ("rope", [HEADS, POSITIONS], {**TURN, "stretch": 2.0}),
        ("rope", [HEADS, POSITIONS, leaf(4)], TURN),
        ("attention", [HEADS, HEADS, leaf("tokens", 1, 4), POSITIONS], SEE),
        ("attention", [HEADS, leaf("tokens", 2, 5), HEADS, POSITIONS], SEE),
        ("attention", [leaf("tokens", 3, 4), HEADS, HEADS, POSITIONS], SEE),
        ("attention", [HEADS, HEADS, HEADS], SEE),
        ("attention", [HEADS, HEADS, HEADS, POSITIONS], {"cache": 0}),
        ("add", [X, HEADS], {}),
        ("mul", [X, leaf("tokens", 9)], {}),
        ("pick", [X, HEADS], {}),
        ("invent", [X], {}),
    ],
)
def test_operands_that_do_not_fit_are_refused(
    name: str, inputs: list[Node], attrs: dict[str, Any]
) -> None:
    with pytest.raises(ShapeError, match=f"{name}|elementwise"):
        make(name, *inputs, **attrs)


def test_an_op_is_entered_once() -> None:
    assert make("silu", X).shape == X.shape
    with pytest.raises(ValueError, match="twice"):
        op(lambda x: x)(_silu_again())


def _silu_again() -> Any:
    def silu(x: Array) -> Array:
        return x

    return silu


def test_rows_of_rowwise_ops_stand_alone() -> None:
    x, more = numbers(5, 2, 4), {"rms_norm": [np.ones(4)], "linear": [numbers(3, 4)]}
    attrs: dict[str, dict[str, Any]] = {
        "rms_norm": {"eps": 1e-5}, "scale": {"by": 2.0}, "softcap": {"cap": 3.0},
    }  # fmt: skip
    for name in ("rms_norm", "linear", "silu", "gelu", "scale", "softcap", "join_heads"):
        assert OPS[name].rowwise
        whole = mean(name, x, *more.get(name, []), **attrs.get(name, {}))
        some = mean(name, x[[3, 1]], *more.get(name, []), **attrs.get(name, {}))
        np.testing.assert_allclose(some, whole[[3, 1]], rtol=1e-12)
    assert not OPS["attention"].rowwise
    assert not OPS["pick"].rowwise
