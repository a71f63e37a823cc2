"""A NaN is never turned into a number: what computed it has to be found."""

from __future__ import annotations

import numpy as np
import pytest
from harness import call, here

from satchel.kernels.activation import GATES, gated, softcap
from satchel.kernels.attention import attend, group_shape
from satchel.kernels.pages import PAGE, head_bytes, key_offset
from satchel.lang.target import TARGETS


@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("act", GATES)
def test_a_gate(act: str, target: str) -> None:
    x = np.linspace(-3, 3, 37).astype(np.float32)
    x[::5] = np.nan
    y = np.zeros_like(x)
    sizes = dict.fromkeys(("n", "gate_stride", "up_stride", "y_stride"), len(x))
    call(gated, target, 1, {"y": y, "gate": x, "up": np.ones_like(x), **sizes}, act=act)
    assert np.array_equal(np.isnan(y), np.isnan(x))


@pytest.mark.parametrize("target", here())
def test_a_softcap(target: str) -> None:
    x = np.linspace(-90, 90, 37).astype(np.float32)
    x[::5] = np.nan
    y, n = np.zeros_like(x), len(x)
    call(softcap, target, 1, {"y": y, "x": x, "n": n, "stride": n, "y_stride": n, "cap": 30.0})
    assert np.array_equal(np.isnan(y), np.isnan(x))


@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("softcap", [None, 50.0])
@pytest.mark.parametrize("slot", [0, 9])
def test_a_key(target: str, softcap: float | None, slot: int) -> None:
    """A token that sees a key with a NaN in it is NaN, one before it is not."""
    d, position = 32, 5
    kv = np.random.default_rng(0).standard_normal(head_bytes(d) // 2).astype(np.float16)
    kv[key_offset(3, slot) // 2] = np.nan
    shape = group_shape(1, TARGETS[target].bits, TARGETS[target].registers)
    q, y = np.ones((1, d), np.float32), np.zeros((1, d), np.float32)
    args = {
        "y": y, "scratch": np.zeros(PAGE * 64, np.float32), "q": q, "kv": kv.view(np.uint8),
        "positions": np.array([position], np.int32), "tables": np.zeros((1, 1), np.int32),
        "groups": np.array([[0, 1, 0, 0]], np.int32), "max_pages": 1, "y_stride": d,
    }  # fmt: skip
    call(
        attend, target, 1, args, n_kv=1, per_kv=1, head_dim=d, window=None, softcap=softcap, **shape
    )
    assert np.isnan(y).all() == (slot <= position)
    assert np.isnan(y).any() == (slot <= position)
