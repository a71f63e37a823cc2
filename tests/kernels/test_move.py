"""Tokens in other slots: values as they were, keys as if they had been at the other position."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Arg, call, everywhere, here
from kv import Pages
from numpy.typing import NDArray

from satchel.graph import ops
from satchel.graph.rope import Scaling, frequencies
from satchel.kernels.move import move_slots
from satchel.kernels.pages import PAGE

Floats = NDArray[np.float32]
BEST = here()[-1]
N_KV, N_PAGES = 2, 6
CASES = [
    (64, 64, "halves"), (64, 64, "adjacent"), (256, 256, "halves"), (80, 80, "adjacent"),
    (12, 12, "halves"), (64, 16, "halves"), (16, 2, "adjacent"),
]  # fmt: skip
TYPES = [
    ("f16", "f16"),
    pytest.param(("bf16", "f16"), marks=pytest.mark.slow),
    pytest.param(("f16", "bf16"), marks=pytest.mark.slow),
]


def turns_of(dims: int, magnitude: float) -> Floats:
    angles = np.arange(256)[:, None] * frequencies(dims, 1000.0, Scaling(), None)
    return (np.stack([np.cos(angles), np.sin(angles)], 1) * magnitude).astype(np.float32)


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=[] if t == BEST else pytest.mark.slow) for t in everywhere()]
)
@pytest.mark.parametrize(("head_dim", "dims", "pairs"), CASES)
@pytest.mark.parametrize("types", TYPES, ids=["f16", "bf16-f16", "f16-bf16"])
def test_moved_and_turned(
    head_dim: int, dims: int, pairs: str, types: tuple[str, str], target: str
) -> None:
    rng = np.random.default_rng(head_dim)
    pages, before = (Pages(N_PAGES, N_KV, head_dim, types) for _ in range(2))
    table = np.array([4, 1, 3], np.int32)
    k, v = rng.standard_normal((2, 150, N_KV, head_dim))

    def turned(x: NDArray[np.float64], position: int) -> Floats:
        at = np.array([position])
        x = ops.rope.meaning(x[None], at, theta=1000.0, dims=dims, pairs=pairs)[0]
        x[:, :dims] *= 1.5
        return x.astype(np.float32)

    for position in range(150):
        for kept in (pages, before):
            kept.put(table, position, turned(k[position], position), v[position].astype(np.float32))
    # 4 sinks, and what is behind position 70; the first slots of the second page are left alone
    kept_positions = [*range(4), *range(70, 150)]
    targets = np.array([0, 5], np.int32)
    sources, shifts = np.full((2, 2 * PAGE), -1, np.int32)
    shifts[:] = 0
    for new, old in enumerate(kept_positions):
        if not PAGE <= new < PAGE + 3:
            sources[new] = table[old // PAGE] * PAGE + old % PAGE
            shifts[new] = old - new
    args: dict[str, Arg] = {
        "kv": pages.bytes, "targets": targets, "sources": sources, "shifts": shifts,
        "turns": turns_of(dims, 1.5), "by": 1 / 1.5,
    }  # fmt: skip
    call(
        move_slots, target, 2 * N_KV, args, n_kv=N_KV, head_dim=head_dim, dims=dims, pairs=pairs,
        types=types,
    )  # fmt: skip
    error = 2e-3 if types[0] == "f16" else 1.6e-2
    for new, old in enumerate(kept_positions):
        if sources[new] < 0:
            continue
        got_k, got_v = pages.get(targets, new)
        np.testing.assert_allclose(got_k, turned(k[old], new), rtol=error, atol=2 * error)
        assert np.array_equal(got_v, before.get(table, old)[1])
        before.put(targets, new, got_k, got_v)
    assert np.array_equal(pages.bytes, before.bytes), "slots of other tokens are changed"
