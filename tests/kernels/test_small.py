"""Norms, embeddings, activations and picked rows against the graph's meanings."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Call, everywhere, here, run
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from weights import FORMATS, random_blocks

from satchel import formats
from satchel.graph import ops
from satchel.kernels import activation
from satchel.kernels.embed import embed
from satchel.kernels.norm import rms_norm
from satchel.kernels.select import pick
from satchel.lang.target import TARGETS

Floats = NDArray[np.float32]
on_every_target = pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=[] if t in here() else pytest.mark.slow) for t in everywhere()],
)
BEST = here()[-1]


def normal(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def normed(x: Floats, w: Floats, target: str, residual: Floats | None = None) -> Floats:
    y = np.full_like(x, np.nan)
    add, n = residual is not None, x.shape[1]
    args = {"y": y, "x": x, "w": w, "residual": residual if add else w, "n": n, "x_stride": n,
            "y_stride": n, "residual_stride": n if add else 0, "eps": 1e-5}  # fmt: skip
    run([Call(rms_norm.build(TARGETS[target], add=add), args, len(x))])
    return y


@on_every_target
def test_norm(target: str) -> None:
    """For widths that fill registers and those that don't."""
    for n in (1, 8, 17, 64, 576):
        x, w = normal(4, n) * np.float32([[0], [1e-9], [1], [1e9]]), normal(n, seed=1)
        want = ops.rms_norm.meaning(x.astype(np.float64), w.astype(np.float64), 1e-5)
        np.testing.assert_allclose(normed(x, w, target), want, rtol=1e-6)


def test_norm_and_residual() -> None:
    x, w, residual = normal(3, 40), normal(40, seed=1), normal(3, 40, seed=2)
    assert np.array_equal(normed(x, w, BEST, residual), normed(x, w, BEST) + residual)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=pytest.mark.slow) for t in here()[:-1]] + [BEST]
)
def test_embedding_is_the_decoded_row(format: str, target: str) -> None:
    """Bit for bit, whatever the row's bytes say."""
    rng = np.random.default_rng(0)
    columns = 512 if formats.by_name(format).elements > 1 else 37
    raw = random_blocks(format, 24, columns, rng)
    want = formats.by_name(format).decode(raw)
    tokens = rng.permutation(24).astype(np.int32)
    y = np.full((24, columns + 3), np.nan, np.float32)
    args = {
        "y": y,
        "table": raw,
        "tokens": tokens,
        "n": columns,
        "y_stride": columns + 3,
        "by": 1.0,
    }
    build = embed.build(TARGETS[target], format=format)
    run([Call(build, args, 24)])
    assert np.array_equal(y[:, :columns].view(np.uint32), want[tokens].view(np.uint32))
    assert np.isnan(y[:, columns:]).all()
    run([Call(build, {**args, "by": 25.25}, 24)])
    assert np.array_equal(y[:, :columns], want[tokens] * np.float32(25.25))


@pytest.mark.slow
@pytest.mark.parametrize("format", ["Q4_K", "Q8_0"])
def test_embedding_by_emulators(format: str) -> None:
    raw = random_blocks(format, 8, 256, np.random.default_rng(0))
    for target in (t for t in everywhere() if t not in here()):
        y = np.zeros((8, 256), np.float32)
        args = {"y": y, "table": raw, "tokens": np.arange(8, dtype=np.int32), "n": 256,
                "y_stride": 256, "by": 1.0}  # fmt: skip
        run([Call(embed.build(TARGETS[target], format=format), args, 8)])
        assert np.array_equal(y, formats.by_name(format).decode(raw))


EDGES = np.array(
    [0, -0.0, 1e-30, 1, -1, 20, -20, 88, -88, 90, -90, 200, -200, 1e4, -1e4, 3e38, -3e38],
    np.float32,
)


@on_every_target
@pytest.mark.parametrize("act", activation.GATES)
def test_gated(act: str, target: str) -> None:
    """act(gate) * up, also where exp would overflow; an act of -3e38 is 0."""
    gate = np.concatenate([EDGES, normal(200) * 5]).reshape(1, -1).repeat(2, 0)
    up, y = normal(*gate.shape, seed=1), np.full_like(gate, np.nan)
    n = gate.shape[1]
    args = {"y": y, "gate": gate, "up": up, "n": n, "gate_stride": n, "up_stride": n, "y_stride": n}
    run([Call(activation.gated.build(TARGETS[target], act=act), args, 2)])
    with np.errstate(over="ignore"):
        want = ops.OPS[act].meaning(gate.astype(np.float64)) * up
    np.testing.assert_allclose(y, want, rtol=3e-6, atol=1e-6)


@on_every_target
def test_softcap(target: str) -> None:
    x = np.concatenate([EDGES, normal(200) * 40]).reshape(1, -1).repeat(2, 0)
    y = np.full((2, x.shape[1] + 7), np.nan, np.float32)
    args = {
        "y": y,
        "x": x,
        "n": x.shape[1],
        "stride": x.shape[1],
        "y_stride": y.shape[1],
        "cap": 30.0,
    }
    run([Call(activation.softcap.build(TARGETS[target]), args, 2)])
    want = ops.softcap.meaning(x.astype(np.float64), 30.0)
    np.testing.assert_allclose(y[:, : x.shape[1]], want, rtol=1e-5, atol=5e-6)
    assert np.isnan(y[:, x.shape[1] :]).all()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 8), min_size=1, max_size=12), st.integers(1, 70))
def test_pick(wanted: list[int], n: int) -> None:
    x, y = normal(9, n + 2), np.full((len(wanted), n + 1), np.nan, np.float32)
    args = {
        "y": y,
        "x": x,
        "wanted": np.array(wanted, np.int32),
        "n": n,
        "x_stride": n + 2,
        "y_stride": n + 1,
    }
    run([Call(pick.build(TARGETS[BEST]), args, len(wanted))])
    assert np.array_equal(y[:, :n], x[wanted, :n])
    assert np.isnan(y[:, n:]).all()
