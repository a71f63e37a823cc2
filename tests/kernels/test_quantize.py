"""Activations as codes: bit-equal to numpy's float32 on every target."""

from __future__ import annotations

import numpy as np
import pytest
from codes import by_rows, codes_of, worth
from harness import Call, everywhere, here, run
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from satchel.graph import ops
from satchel.kernels.quantize import BLOCK_BYTES, CODES, SCALE, norm_quantize, quantize
from satchel.lang.target import TARGETS

Floats = NDArray[np.float32]
WIDTHS = (6, 4, 2, 1)


def quantized(x: Floats, target: str, digits: int = 1, width: int = 0) -> NDArray[np.uint8]:
    """The kernel's blocks of the first `width` elements of each row."""
    width = width or x.shape[1]
    out = np.zeros((len(x), digits, width // CODES, BLOCK_BYTES), np.uint8)
    build = quantize.build(TARGETS[target], digits=digits, widths=WIDTHS)
    args = {"out": out, "x": x, "n": width, "x_stride": x.shape[1], "n_rows": len(x)}
    run([Call(build, args, len(x))])
    return by_rows(out.ravel(), out, WIDTHS)


def rows(n: int, width: int, seed: int = 0) -> Floats:
    """Rows of sizes from 1e-20 to 1e20, with zeros, ties and lone large elements among them."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, width)) * 10.0 ** rng.uniform(-20, 20, (n, 1))
    x[0], x[1, : CODES + 1] = 0, 0
    x[2] = np.arange(width) % CODES - 16  # halves of codes
    x[3, ::40] *= 1000
    return x.astype(np.float32)


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[] if t in here() else pytest.mark.slow) for t in everywhere()]
)
@pytest.mark.parametrize("digits", [1, 2])
def test_blocks_are_numpys(target: str, digits: int) -> None:
    x = rows(9, 96)
    got = quantized(x, target, digits)
    assert np.array_equal(got, codes_of(x, digits))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.floats(-(2.0**125), 2.0**125, width=32), min_size=32, max_size=32),
    st.sampled_from(here()), st.sampled_from([1, 2]),
)  # fmt: skip
def test_any_block(values: list[float], target: str, digits: int) -> None:
    """Bit-equal to numpy, and within half a step of x (a 254th of it with two digits)."""
    x = np.array([values], np.float32)
    got = quantized(x, target, digits)
    assert np.array_equal(got, codes_of(x, digits))
    top = float(np.abs(x).max())
    step = top / 127 / (254 if digits == 2 else 1)
    assert np.abs(worth(got) - x).max() <= step * 0.5 + 1e-6 * top + 2e-33


@pytest.mark.parametrize("target", here())
def test_more_than_can_be_said(target: str) -> None:
    """Where an element is not finite, its own block says something; all others are untouched."""
    x = rows(6, 128, seed=1)
    want = quantized(x, target)
    for bad in (np.inf, -np.inf, np.nan):
        spoilt = x.copy()
        spoilt[4, 40] = bad
        got = quantized(spoilt, target)
        got[4, 0, 1] = want[4, 0, 1]
        assert np.array_equal(got, want)


def test_rows_of_a_wider_matrix() -> None:
    x = rows(5, 160)
    got = quantized(x, here()[-1], width=64)
    assert np.array_equal(got, codes_of(np.ascontiguousarray(x[:, :64])))


@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("digits", [1, 2])
def test_norm_then_codes(target: str, digits: int) -> None:
    """Near the norm's meaning: no further than rounding takes it."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((7, 576)).astype(np.float32) * 3
    w = rng.standard_normal(576).astype(np.float32)
    out = np.zeros((7, digits, 18, BLOCK_BYTES), np.uint8)
    args = {"out": out, "x": x, "w": w, "n": 576, "x_stride": 576, "n_rows": 7, "eps": 1e-5}
    run([Call(norm_quantize.build(TARGETS[target], digits=digits, widths=WIDTHS), args, 7)])
    out = by_rows(out.ravel(), out, WIDTHS)
    want = ops.rms_norm.meaning(x.astype(np.float64), w.astype(np.float64), 1e-5)
    step = np.abs(want.reshape(7, -1, CODES)).max(-1, keepdims=True) / 127
    step = step / (254 if digits == 2 else 1)
    assert np.all(np.abs((worth(out) - want).reshape(7, -1, CODES)) <= 0.51 * step + 1e-5)


@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("lane", [0, 15, 16, 31])
def test_a_nan_is_never_lost(target: str, lane: int) -> None:
    """Wherever in a block it stands, the block's scale is a NaN, and so are all products of it."""
    x = np.ones((1, 64), np.float32)
    x[0, lane] = np.nan
    d = [float(b[SCALE : SCALE + 4].view(np.float32)[0]) for b in quantized(x, target)[0, 0]]
    assert np.isnan(d[0])
    assert d[1] == np.float32(1) * np.float32(1 / 127.0)
