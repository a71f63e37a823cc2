"""What a former sequence left in a page, however broken, is never seen by the next one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from harness import call, here
from kv import F16
from numpy.typing import NDArray

from satchel.kernels.attention import Heads, attend, group_shape
from satchel.kernels.groups import query_groups
from satchel.kernels.pages import PAGE, page_bytes
from satchel.kernels.rope import rope_store
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT

HEAD_DIM, N_KV, PER_KV = 32, 2, 2
N_HEADS = N_KV * PER_KV
WIDTH = (N_HEADS + 2 * N_KV) * HEAD_DIM
Array = NDArray[Any]


def run_sequence(
    target: str, kv: Array, qkv: Array, start: int = 0, types: tuple[str, str] = F16
) -> NDArray[np.float32]:
    """The rows of qkv [tokens, WIDTH] are stored in the pages and attended to, from `start` on."""
    n = len(qkv)
    positions = np.arange(start, start + n, dtype=np.int32)
    sequences, tables = np.zeros(n, np.int32), np.arange(8, dtype=np.int32).reshape(1, -1)
    q, y = (np.zeros((n, N_HEADS * HEAD_DIM), np.float32) for _ in range(2))
    shared = {"positions": positions, "tables": tables, "max_pages": 8}
    flat, at_k = qkv.reshape(-1), N_HEADS * HEAD_DIM
    turns = np.concatenate([np.ones((512, HEAD_DIM // 2)), np.zeros((512, HEAD_DIM // 2))], 1)
    none = np.zeros(HEAD_DIM, np.float32)
    call(
        rope_store, target, n,
        {"q_out": q, "kv": kv, "q": flat, "k": flat[at_k:], "v": flat[at_k + N_KV * HEAD_DIM :],
         "sequences": sequences, "turns": turns.astype(np.float32), "q_weight": none,
         "k_weight": none, "q_stride": WIDTH, "k_stride": WIDTH, "v_stride": WIDTH,
         "scale": HEAD_DIM**-0.5, "eps": 1e-6, **shared},
        n_heads=N_HEADS, n_kv=N_KV, head_dim=HEAD_DIM, dims=HEAD_DIM, pairs="halves", normed=False,
        types=types,
    )  # fmt: skip
    shape = group_shape(PER_KV, TARGETS[target].bits, TARGETS[target].registers, DEFAULT)
    groups = query_groups(sequences, positions, shape["group_tokens"])
    heads = Heads(N_KV, PER_KV, HEAD_DIM, None, None, types=types, **shape)
    room = len(groups) * N_KV * heads.tile_floats * 4
    call(
        attend, target, len(groups) * N_KV,
        {"y": y, "scratch": np.zeros(room, np.uint8), "q": q, "kv": kv, "groups": groups,
         "y_stride": N_HEADS * HEAD_DIM, **shared},
        n_kv=N_KV, per_kv=PER_KV, head_dim=HEAD_DIM, window=None, softcap=None,
        types=types, **shape,
    )  # fmt: skip
    return y


def tokens(n: int, seed: int) -> NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal((n, WIDTH)).astype(np.float32)


def pages(types: tuple[str, str] = F16) -> Array:
    return np.zeros(8 * page_bytes(N_KV, HEAD_DIM, types), np.uint8)


OTHERS = [
    pytest.param(types, marks=[] if types[0] == "int8" else pytest.mark.slow, id="-".join(types))
    for types in [("int8", "int4"), ("int4", "int4-rot"), ("bf16", "int8"), ("int4-rot", "bf16")]
]


@pytest.mark.parametrize("types", OTHERS)
@pytest.mark.parametrize("broken", [np.nan, np.inf, -3e38])
def test_after_a_broken_one_in_every_type(types: tuple[str, str], broken: float) -> None:
    for n in (5, PAGE + 9):
        kv, old, new = pages(types), tokens(2 * PAGE, 0), tokens(n, 1)
        want = run_sequence(here()[-1], kv.copy(), new, types=types)
        old[:, N_HEADS * HEAD_DIM :] = broken
        after = run_sequence(here()[-1], kv, old, types=types)
        assert np.isfinite(after).all() == (broken == -3e38)
        assert np.array_equal(run_sequence(here()[-1], kv, new, types=types), want)
        assert np.isfinite(want).all()


@pytest.mark.parametrize("types", OTHERS)
def test_chunks_change_no_bit_in_any_type(types: tuple[str, str]) -> None:
    """And what is too large, or broken, stays hidden from those before it."""
    x = tokens(12, 2)
    x[7:10, -N_KV * HEAD_DIM :] = 1e30
    kv = pages(types)
    alone = [run_sequence(here()[-1], kv, x[i : i + 1], i, types) for i in range(len(x))]
    whole = run_sequence(here()[-1], pages(types), x, types=types)
    assert np.array_equal(whole, np.concatenate(alone))
    assert np.isfinite(alone).all()


@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("n", [1, 5, PAGE - 1, PAGE, PAGE + 9])
@pytest.mark.parametrize("broken", [np.nan, np.inf, -np.inf, 3e38])
def test_a_sequence_after_a_broken_one(target: str, n: int, broken: float) -> None:
    kv, old, new = pages(), tokens(2 * PAGE, 0), tokens(n, 1)
    want = run_sequence(target, kv.copy(), new)
    old[:, N_HEADS * HEAD_DIM :] = broken
    run_sequence(target, kv, old)
    assert np.array_equal(run_sequence(target, kv, new), want)
    assert np.isfinite(want).all()


@pytest.mark.parametrize("target", here())
def test_values_too_large_to_store_stay_hidden_from_those_before(target: str) -> None:
    """A chunk's later tokens lie in the page that its earlier ones read."""
    x = tokens(12, 2)
    x[7:, -N_KV * HEAD_DIM :] = 1e30
    kv = pages()
    alone = [run_sequence(target, kv, x[i : i + 1], i) for i in range(len(x))]
    assert np.array_equal(run_sequence(target, pages(), x), np.concatenate(alone))
    assert np.isfinite(alone).all()


@pytest.mark.parametrize("target", here())
def test_a_nan_that_is_the_sequence_s_own_is_not_hidden(target: str) -> None:
    x = tokens(3, 3)
    x[1, -1] = np.nan
    assert np.isnan(run_sequence(target, pages(), x)[2]).any()
