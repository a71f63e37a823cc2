"""Rope, and the way of k and v into their pages, against the graph's meanings."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from harness import Call, everywhere, here, run
from kv import F16, TYPES, Pages, hadamard
from numpy.typing import NDArray

from satchel.graph import ops
from satchel.graph.rope import Scaling, frequencies
from satchel.kernels.rope import LOG2E, rope_store
from satchel.lang.target import TARGETS

Floats = NDArray[np.float32]
BEST = here()[-1]
EPS = 1e-5
N_HEADS, N_KV = 3, 2


def turns_of(dims: int, context: int = 256) -> Floats:
    """Cosines and sines [positions, 2, dims / 2] in float32."""
    angles = np.arange(context)[:, None] * frequencies(dims, 1000.0, Scaling(), None)
    return np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)


class Case:
    """Tokens of two sequences, their q, k and v as columns of one matrix."""

    def __init__(self, head_dim: int, types: tuple[str, str] = F16) -> None:
        rng = np.random.default_rng(head_dim)
        self.d, self.pages = head_dim, Pages(6, N_KV, head_dim, types)
        self.positions = np.array([0, 1, 63, 64, 130, 5, 6], np.int32)
        self.sequences = np.array([1, 1, 1, 1, 1, 0, 0], np.int32)
        self.tables = np.array([[4, -1, -1], [5, 0, 2]], np.int32)
        self.n_rows = (N_HEADS + 2 * N_KV) * head_dim
        self.wide = rng.standard_normal((7, self.n_rows)).astype(np.float32)
        self.weights = rng.standard_normal((2, head_dim)).astype(np.float32)
        at = np.cumsum([0, N_HEADS, N_KV, N_KV]) * head_dim
        self.parts = [self.wide[:, a:b].reshape(7, -1, head_dim) for a, b in pairwise(at)]
        flat = self.wide.reshape(-1)
        self.starts = [flat[a:] for a in at[:3]]

    def run(self, target: str, dims: int, pairs: str, normed: bool, scale: float) -> Floats:
        """Stores k and v; gives q [tokens, heads, head_dim]."""
        q_out = np.full((7, N_HEADS, self.d), np.nan, np.float32)
        q, k, v = self.starts
        args = {
            "q_out": q_out, "kv": self.pages.bytes, "q": q, "k": k, "v": v,
            "positions": self.positions, "sequences": self.sequences, "tables": self.tables,
            "turns": turns_of(dims), "q_weight": self.weights[0], "k_weight": self.weights[1],
            "max_pages": 3, "q_stride": self.n_rows, "k_stride": self.n_rows,
            "v_stride": self.n_rows, "scale": scale, "eps": EPS,
        }  # fmt: skip
        build = rope_store.build(
            TARGETS[target], n_heads=N_HEADS, n_kv=N_KV, head_dim=self.d, dims=dims, pairs=pairs,
            normed=normed, types=self.pages.types,
        )  # fmt: skip
        run([Call(build, args, 7)])
        return q_out

    def meaning(self, dims: int, pairs: str, normed: bool) -> list[NDArray[np.float64]]:
        q, k, v = (x.astype(np.float64) for x in self.parts)
        if normed:
            q, k = (
                ops.rms_norm.meaning(x, w.astype(np.float64), EPS)
                for x, w in zip((q, k), self.weights, strict=True)
            )
        return [
            *(
                ops.rope.meaning(x, self.positions, theta=1000.0, dims=dims, pairs=pairs)
                for x in (q, k)
            ),
            v,
        ]


CASES = [
    (64, 64, "halves", False), (64, 64, "adjacent", False), (32, 32, "halves", True),
    (256, 256, "halves", True), (80, 80, "adjacent", False), (12, 12, "adjacent", False),
    (8, 8, "halves", True), (64, 16, "halves", False), (64, 48, "adjacent", True),
    (16, 2, "halves", False),
]  # fmt: skip


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[] if t == BEST else pytest.mark.slow) for t in everywhere()]
)
@pytest.mark.parametrize(("head_dim", "dims", "pairs", "normed"), CASES)
def test_rope_is_its_meaning(
    head_dim: int, dims: int, pairs: str, normed: bool, target: str
) -> None:
    """q is turned and scaled; k, turned, and v stand in their slots, and nothing else moves."""
    case = Case(head_dim)
    before = Pages(6, N_KV, head_dim)
    got = case.run(target, dims, pairs, normed, 0.125)
    q, k, v = case.meaning(dims, pairs, normed)
    np.testing.assert_allclose(got, q * 0.125 * LOG2E, rtol=0, atol=2e-6)
    for i, (position, sequence) in enumerate(zip(case.positions, case.sequences, strict=True)):
        stored_k, stored_v = case.pages.get(case.tables[sequence], position)
        np.testing.assert_allclose(stored_k, k[i], rtol=2e-3, atol=2e-6)
        assert np.array_equal(stored_v, v[i].astype(np.float16))
        before.put(case.tables[sequence], position, stored_k, stored_v)
    assert np.array_equal(case.pages.halves, before.halves), "slots of other tokens are changed"


def test_what_a_half_cannot_hold_is_the_largest_half() -> None:
    """An infinity in a page would poison whoever gets the page next: 0 * inf is no number."""
    case = Case(32)
    case.wide *= 1e6
    case.run(BEST, 32, "halves", False, 1.0)
    assert np.isfinite(case.pages.halves).all()


ERRORS = {"f16": 5e-4, "bf16": 3e-3, "int8": 8e-3, "int4": 0.13, "int4-rot": 0.13}
"""At most, by the length of the token's head."""
FAST = [("int8", "int4"), ("int4-rot", "bf16")]
ALL = [pytest.param(t, marks=[] if t in FAST else pytest.mark.slow) for t in TYPES if t != F16]


@pytest.mark.parametrize("types", ALL, ids="-".join)
@pytest.mark.parametrize(
    ("head_dim", "dims", "pairs"),
    [
        (96, 96, "adjacent"),
        (12, 12, "halves"),
        *(pytest.param(64, dims, "halves", marks=pytest.mark.slow) for dims in (64, 2)),
    ],
)
def test_other_types_are_stored_rounded(
    types: tuple[str, str], head_dim: int, dims: int, pairs: str
) -> None:
    """And q is rotated where K is."""
    assert_stored(types, head_dim, dims, pairs, BEST)


@pytest.mark.slow
@pytest.mark.parametrize("target", everywhere())
@pytest.mark.parametrize("kind", ERRORS)
def test_all_targets_store_every_type(kind: str, target: str) -> None:
    assert_stored((kind, kind), 64, 64, "halves", target)


def assert_stored(
    types: tuple[str, str], head_dim: int, dims: int, pairs: str, target: str
) -> None:
    case = Case(head_dim, types)
    before, after = case.pages.bytes.copy(), case.pages
    got = case.run(target, dims, pairs, False, 1.0)
    q, k, v = case.meaning(dims, pairs, False)
    np.testing.assert_allclose(got, hadamard(q, types[0]) * LOG2E, rtol=0, atol=1e-5)
    for i, (position, sequence) in enumerate(zip(case.positions, case.sequences, strict=True)):
        table = case.tables[sequence]
        for kind, want, stored in zip(types, (k[i], v[i]), after.get(table, position), strict=True):
            error, length = (np.linalg.norm(x, axis=-1) for x in (stored - want, want))
            assert (error <= ERRORS[kind] * length).all(), error / length
        own = sorted(set().union(*(s.bytes_of(position % 64) for s in after.sides)))
        page = table[position // 64]
        before[page][:, own] = after.bytes[page][:, own]
    assert np.array_equal(before, after.bytes), "slots of other tokens are changed"
