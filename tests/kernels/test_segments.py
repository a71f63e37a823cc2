"""A long past shared in segments gives the bits of one that was walked whole."""

from __future__ import annotations

import numpy as np
import pytest
from tests.kernels.harness import Call, here, run
from tests.kernels.kv import F16, Pages

from satchel.kernels.attention import PAGE, Heads, attend, attend_part, group_shape, merge_parts
from satchel.kernels.groups import MAX_SPLIT, SEGMENT, heads_together, n_segments, query_groups
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT

OTHERS = [("int8", "int8"), ("int4", "bf16"), ("bf16", "int4-rot")]


@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("last", [0, 100, 511, 512, 513, 1024, 1500])
def test_parts_are_the_whole(target: str, last: int) -> None:
    assert_parts_are_the_whole(target, last, F16)


@pytest.mark.slow
@pytest.mark.parametrize("types", OTHERS, ids="-".join)
def test_parts_are_the_whole_in_every_type(types: tuple[str, str]) -> None:
    assert_parts_are_the_whole(here()[-1], 1100, types)


def assert_parts_are_the_whole(target: str, last: int, types: tuple[str, str]) -> None:
    n_kv, per_kv, head_dim, n = 2, 3, 32, min(5, last + 1)
    rng, t = np.random.default_rng(last), TARGETS[target]
    form = group_shape(per_kv, t.bits, t.registers, DEFAULT)
    heads = Heads(n_kv, per_kv, head_dim, None, None, types=types, **form)
    n_pages = last // PAGE + 1
    pages, order = Pages(n_pages, n_kv, head_dim, types), rng.permutation(n_pages).astype(np.int32)
    for i in range(0 if types != F16 else last + 1, last + 1):
        pages.put(order, i, *rng.standard_normal((2, n_kv, head_dim)).astype(np.float32))
    positions = np.arange(last + 1 - n, last + 1, dtype=np.int32)
    groups = query_groups(np.zeros(n, np.int32), positions, form["group_tokens"])
    q = rng.standard_normal((n, n_kv * per_kv, head_dim)).astype(np.float32)
    shared = {
        "q": q, "kv": pages.bytes, "positions": positions, "max_pages": n_pages,
        "tables": order[None], "groups": groups, "n_groups": len(groups), "y_stride": q[0].size,
    }  # fmt: skip
    constants = dict(
        n_kv=n_kv, per_kv=per_kv, head_dim=head_dim, window=None, softcap=None, types=types, **form
    )
    tiles = len(groups) * n_kv

    def scratch(n_tiles: int) -> np.ndarray:
        return np.full(n_tiles * heads.tile_floats, np.nan, np.float32)

    def call(kernel, n_tiles: int, **own: np.ndarray | int) -> Call:
        every = shared | own
        build = kernel.build(t, **constants)
        return Call(build, {name: every[name] for name in kernel.slots}, n_tiles)

    whole = np.full_like(q, np.nan)
    run([call(attend, tiles, y=whole, scratch=scratch(tiles))])
    assert np.isfinite(whole).all()
    parts = tiles * n_segments(last + 1)
    for together in (1, n_kv):
        out, room = np.full_like(q, np.nan), scratch(parts)
        run([call(attend_part, parts // together, scratch=room, together=together)])
        run([call(merge_parts, tiles, y=out, scratch=room)])
        assert np.array_equal(whole, out)


def test_how_a_past_is_shared() -> None:
    assert heads_together(1, 3, SEGMENT * PAGE, 2) == 0  # one segment
    assert heads_together(1, 3, SEGMENT * PAGE + 1, 2) == 1  # few tiles
    assert heads_together(4, 3, SEGMENT * PAGE + 1, 4) == 3  # few, and segments enough
    assert heads_together(1, 3, 10_000, 2) == 3
    assert heads_together(1, 3, 10_000, 1) == 3  # alone, but memory is read on and on
    assert heads_together(1, 8, SEGMENT * PAGE + 1, 2) == 0  # tiles enough
    assert heads_together(64, 3, 10_000, 2) == 0
    assert heads_together(MAX_SPLIT, 1, 10_000, 64) == 0  # more than the scratch has room for
