"""How much is attended to each slot: sums of softmax weights, to the same bits in any batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from harness import Arg, Call, everywhere, here, run
from kv import Pages
from numpy.typing import NDArray
from test_attention import Shape, Story

from satchel.kernels.attention import Heads, attend, group_shape
from satchel.kernels.groups import query_groups
from satchel.kernels.mass import weigh_slots
from satchel.kernels.pages import PAGE
from satchel.kernels.rope import LOG2E
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT

BEST = here()[-1]
SHAPES = [Shape(3, 3, 64), Shape(1, 4, 256), Shape(2, 2, 12), Shape(2, 2, 32, softcap=2.0)]
TABLE = [5, 2, 7]


def masses(shape: Shape, sizes: Sequence[int], target: str) -> NDArray[np.float32]:
    """The masses of a sequence's slots, by kv head, after steps of these sizes."""
    pages = Pages(8, shape.n_kv, shape.head_dim)
    story, t = Story(shape, sum(sizes), pages, TABLE), TARGETS[target]
    form = group_shape(shape.per_kv, t.bits, t.registers, DEFAULT)
    constants: dict[str, Any] = {
        "n_kv": shape.n_kv, "per_kv": shape.per_kv, "head_dim": shape.head_dim,
        "window": None, "softcap": shape.softcap, **form,
    }  # fmt: skip
    mass = np.full((8, shape.n_kv, PAGE), np.nan, np.float32)
    mass[TABLE] = 1e9  # what a former sequence left
    at = 0
    for n in sizes:
        positions = np.arange(at, at + n, dtype=np.int32)
        groups = query_groups(np.zeros(n, np.int32), positions, form["group_tokens"])
        n_scratch = len(groups) * shape.n_kv * Heads(**constants).tile_floats
        q = story.q[at : at + n] * np.float32(LOG2E)
        every: dict[str, Arg] = {
            "y": np.zeros(q.shape, np.float32), "scratch": np.zeros(n_scratch, np.float32),
            "q": q, "kv": pages.bytes, "positions": positions, "groups": groups, "mass": mass,
            "tables": story.table[None], "n_groups": len(groups), "max_pages": len(TABLE),
            "y_stride": q[0].size,
        }  # fmt: skip
        for kernel, tiles in ((attend, len(groups) * shape.n_kv), (weigh_slots, shape.n_kv)):
            args = {name: every[name] for name in kernel.slots}
            run([Call(kernel.build(t, **constants), args, tiles)])
        at += n
    return mass[TABLE].transpose(1, 0, 2).reshape(shape.n_kv, -1)[:, :at]


def meaning(shape: Shape, n: int) -> NDArray[np.float64]:
    """Softmax weights, summed over queries and a kv head's heads."""
    story = Story(shape, n, Pages(8, shape.n_kv, shape.head_dim), TABLE)
    k = np.repeat(story.k, shape.per_kv, axis=1).astype(np.float64)
    scores = np.einsum("qhd,khd->hqk", story.q.astype(np.float64), k)
    if shape.softcap is not None:
        scores = np.tanh(scores / shape.softcap) * shape.softcap
    weights = np.where(np.tril(np.ones((n, n), bool)), np.exp(scores), 0)
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights.sum(axis=1).reshape(shape.n_kv, shape.per_kv, n).sum(axis=1)


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[] if t == BEST else pytest.mark.slow) for t in everywhere()]
)
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(s, marks=[] if s in SHAPES[::3] else pytest.mark.slow, id=str(s))
        for s in SHAPES
    ],
)
def test_masses_are_sums_of_weights(shape: Shape, target: str) -> None:
    got = masses(shape, [150], target)
    np.testing.assert_allclose(got, meaning(shape, 150), rtol=1e-5)


@pytest.mark.parametrize("sizes", [[1] * 90, [30, 1, 59], [64, 26]])
def test_batches_change_no_bit(sizes: list[int]) -> None:
    shape = SHAPES[0]
    assert np.array_equal(masses(shape, sizes, BEST), masses(shape, [90], BEST))
