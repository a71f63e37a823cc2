"""A NaN is never turned into a number: what computed it has to be found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import call, here
from kv import BITS, Pages

from satchel.kernels.activation import GATES, gated, softcap
from satchel.kernels.attention import attend, group_shape
from satchel.kernels.pages import PAGE
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT


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


def _some(kind: str, target: str) -> Any:
    """Marks what is left out of the fast tests."""
    fast = kind == "f16" or (kind == "int4" and target == here()[-1])
    return pytest.param(kind, target, marks=[] if fast else pytest.mark.slow)


@pytest.mark.parametrize(("kind", "target"), [_some(k, t) for k in BITS for t in here()])
@pytest.mark.parametrize("softcap", [None, 50.0])
@pytest.mark.parametrize("slot", [0, 9])
def test_a_key(target: str, softcap: float | None, slot: int, kind: str) -> None:
    """A token that sees a key with a NaN in it, or in its scale, is NaN; one before it is not."""
    d, position = 32, 5
    pages, table = Pages(1, 1, d, (kind, kind)), np.zeros(1, np.int32)
    ones, keys = np.ones((1, d), np.float32), pages.sides[0]
    for i in range(position + 1):
        pages.put(table, i, ones, ones)
    place = keys.scales + 2 * slot if keys.group else keys.codes[3, slot]
    pages.bytes[0, 0, place : place + 2] = 0xFF, 0x7F
    shape = group_shape(1, TARGETS[target].bits, TARGETS[target].registers, DEFAULT)
    q, y = np.ones((1, d), np.float32), np.zeros((1, d), np.float32)
    args = {
        "y": y, "scratch": np.zeros(PAGE * 64, np.float32), "q": q, "kv": pages.bytes,
        "positions": np.array([position], np.int32), "tables": np.zeros((1, 1), np.int32),
        "groups": np.array([[0, 1, 0, 0]], np.int32), "max_pages": 1, "y_stride": d,
    }  # fmt: skip
    call(
        attend, target, 1, args, n_kv=1, per_kv=1, head_dim=d, window=None, softcap=softcap,
        types=pages.types, **shape,
    )  # fmt: skip
    assert np.isnan(y).all() == (slot <= position)
    assert np.isnan(y).any() == (slot <= position)
