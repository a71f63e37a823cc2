"""Attention over pages: near the graph's meaning, and bit-equal however the tokens come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from harness import Call, everywhere, here, run
from hypothesis import given, settings
from hypothesis import strategies as st
from kv import BITS, F16, TYPES, Pages, hadamard
from numpy.typing import NDArray

from satchel.graph import ops
from satchel.kernels.attention import Heads, attend, group_shape
from satchel.kernels.groups import query_groups
from satchel.kernels.rope import LOG2E
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT

Floats = NDArray[np.float32]
BEST = here()[-1]


def slow_but(best: str) -> list[Any]:
    """All targets; those but one are left out of the fast tests."""
    return [pytest.param(t, marks=[] if t == best else pytest.mark.slow) for t in everywhere()]


@dataclass(frozen=True)
class Shape:
    """Heads, and how they see."""

    n_kv: int = 2
    per_kv: int = 3
    head_dim: int = 32
    window: int | None = None
    softcap: float | None = None


class Story:
    """A sequence's q, k and v, its pages, and what its tokens should see."""

    def __init__(
        self, shape: Shape, n: int, pages: Pages, table: Sequence[int], seed: int = 0
    ) -> None:
        rng = np.random.default_rng(seed)
        d, n_heads = shape.head_dim, shape.n_kv * shape.per_kv
        self.q = (rng.standard_normal((n, n_heads, d)) * 3 / d**0.5).astype(np.float32)
        self.k, self.v = (
            rng.standard_normal((2, n, shape.n_kv, d)).astype(np.float16).astype(np.float32)
        )
        self.table = np.array(table, np.int32)
        for i in range(n):
            pages.put(self.table, i, self.k[i], self.v[i])
            self.k[i], self.v[i] = pages.get(self.table, i)
        self.meaning = ops.attention.meaning(
            *(x.astype(np.float64) for x in (self.q, self.k, self.v)), np.arange(n), cache=0,
            scale=1.0, window=shape.window, softcap=shape.softcap,
        )  # fmt: skip


Part = tuple[Story, int, int]
"""Tokens first .. end of a sequence."""


def attention(
    shape: Shape, pages: Pages, parts: Sequence[Part], target: str, **other: Any
) -> list[Floats]:
    """What the tokens of each part see, all of them in one step."""
    q = np.concatenate([s.q[a:b] for s, a, b in parts]) * np.float32(LOG2E)
    q = hadamard(q, pages.types[0])
    positions = np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in parts])
    sequences = np.repeat(np.arange(len(parts), dtype=np.int32), [b - a for _, a, b in parts])
    tables = np.stack([s.table for s, _, _ in parts])
    t = TARGETS[target]
    form = group_shape(shape.per_kv, t.bits, t.registers, DEFAULT) | other
    groups = query_groups(sequences, positions, form["group_tokens"])
    constants = dict(
        n_kv=shape.n_kv, per_kv=shape.per_kv, head_dim=shape.head_dim, window=shape.window,
        softcap=shape.softcap, types=pages.types, **form,
    )  # fmt: skip
    n_scratch = len(groups) * shape.n_kv * Heads(**constants).tile_floats
    y = np.full(q.shape, np.nan, np.float32)
    args = {
        "y": y, "scratch": np.full(n_scratch, np.nan, np.float32), "q": q,
        "kv": pages.bytes, "positions": positions, "tables": tables,
        "groups": groups, "max_pages": tables.shape[1], "y_stride": y[0].size,
    }  # fmt: skip
    build = attend.build(t, **constants)
    run([Call(build, args, len(groups) * shape.n_kv)])
    return np.split(y, np.cumsum([b - a for _, a, b in parts])[:-1])


def one_story(shape: Shape, n: int, types: tuple[str, str] = F16) -> tuple[Pages, Story]:
    pages = Pages(8, shape.n_kv, shape.head_dim, types)
    return pages, Story(shape, n, pages, [5, 2, 7, 0, 3])


SHAPES = {
    "one head": Shape(1, 1, 16),
    "many kv heads": Shape(5, 1, 48),
    "grouped": Shape(3, 3, 64),
    "eight a kv head": Shape(1, 8, 80),
    "gemma": Shape(1, 4, 256, window=90),
    "odd": Shape(2, 2, 12),
    "narrow": Shape(2, 2, 8, window=1),
    "window of a page": Shape(2, 3, 32, window=64),
    "window in a page": Shape(2, 7, 32, window=5),
    "capped": Shape(2, 2, 128, softcap=2.0),
    "capped window": Shape(1, 4, 96, window=100, softcap=50.0),
}


QUICK = ("one head", "grouped", "gemma", "odd", "window in a page", "capped window")
EVERY = [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in SHAPES]


@pytest.mark.parametrize("target", slow_but(BEST))
@pytest.mark.parametrize("name", EVERY)
def test_attention_is_its_meaning(name: str, target: str) -> None:
    """A whole sequence at once, in pages that lie anywhere, beside garbage."""
    if target not in here() and name not in ("grouped", "gemma", "capped window"):
        name = "odd"
    shape = SHAPES[name]
    pages, story = one_story(shape, 150)
    (got,) = attention(shape, pages, [(story, 0, 150)], target)
    np.testing.assert_allclose(got, story.meaning, rtol=0, atol=4e-6 * np.abs(story.v).max())


FAST = [("int8", "int4"), ("int4-rot", "bf16")]
ALL = [pytest.param(t, marks=[] if t in FAST else pytest.mark.slow) for t in TYPES if t != F16]


@pytest.mark.parametrize("types", ALL, ids="-".join)
def test_types_keep_their_meaning_and_their_bits(types: tuple[str, str]) -> None:
    """For each pair: a sequence at once is what float64 makes of the numbers in its pages, and one
    token at a time gives the same bits, beside pages and slots full of anything."""
    names = ("odd", "grouped") if types in FAST else ("odd", "eight a kv head", "gemma", "grouped")
    for name in names:
        shape = SHAPES[name]
        pages, story = one_story(shape, 80, types)
        (got,) = attention(shape, pages, [(story, 0, 80)], BEST)
        np.testing.assert_allclose(got, story.meaning, rtol=0, atol=6e-6 * np.abs(story.v).max())
        for i in (0, 3, 63, 64, 79):
            assert np.array_equal(attention(shape, pages, [(story, i, i + 1)], BEST)[0][0], got[i])


@pytest.mark.slow
@pytest.mark.parametrize("target", everywhere())
@pytest.mark.parametrize("kind", [kind for kind in BITS if kind != "f16"])
def test_types_on_all_targets(kind: str, target: str) -> None:
    shape = SHAPES["grouped"]
    pages, story = one_story(shape, 70, (kind, kind))
    (got,) = attention(shape, pages, [(story, 0, 70)], target)
    np.testing.assert_allclose(got, story.meaning, rtol=0, atol=6e-6 * np.abs(story.v).max())


@pytest.mark.parametrize("target", slow_but(BEST)[: len(here())])
@pytest.mark.parametrize("name", ["grouped", "gemma", "capped window", "window in a page"])
def test_one_token_at_a_time_is_the_same(name: str, target: str) -> None:
    shape = SHAPES[name]
    pages, story = one_story(shape, 140)
    (want,) = attention(shape, pages, [(story, 0, 140)], target)
    got = [attention(shape, pages, [(story, i, i + 1)], target)[0][0] for i in range(140)]
    assert np.array_equal(np.stack(got), want)


def cut(data: st.DataObject, n: int) -> list[tuple[int, int]]:
    """Ranges that make up 0 .. n."""
    at = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=6)))
    return list(zip([0, *at], [*at, n], strict=True))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    st.data(),
    st.sampled_from(["grouped", "gemma", "window in a page", "capped"]),
    st.sampled_from(here()),
)
def test_company_and_chunks_change_no_bit(data: st.DataObject, name: str, target: str) -> None:
    """Three sequences in chunks of any sizes, any of which share a step in any order."""
    shape = SHAPES[name]
    pages = Pages(8, shape.n_kv, shape.head_dim)
    order = data.draw(st.permutations(range(8)))
    stories = [
        Story(shape, n, pages, order[2 * i : 2 * i + 2], seed=i) for i, n in enumerate((70, 3, 128))
    ]
    want = [attention(shape, pages, [(s, 0, len(s.q))], target)[0] for s in stories]
    left = [(s, a, b) for s in stories for a, b in cut(data, len(s.q))]
    got = [np.full_like(w, np.nan) for w in want]
    while left:
        n = data.draw(st.integers(1, len(left)))
        step, left = left[:n], left[n:]
        step = data.draw(st.permutations(step))
        for (story, a, b), y in zip(step, attention(shape, pages, step, target), strict=True):
            got[stories.index(story)][a:b] = y
    assert all(np.array_equal(g, w) for g, w in zip(got, want, strict=True))


@pytest.mark.parametrize("form", [(1, (1,)), (2, (3, 1)), (5, (6, 2, 1)), (8, (4, 1))])
def test_grouping_changes_no_bit(form: tuple[int, tuple[int, ...]]) -> None:
    shape = SHAPES["grouped"]
    pages, story = one_story(shape, 130)
    (want,) = attention(shape, pages, [(story, 0, 130)], BEST)
    (got,) = attention(shape, pages, [(story, 0, 130)], BEST, group_tokens=form[0], widths=form[1])
    assert np.array_equal(got, want)


def test_what_comes_later_changes_no_bit() -> None:
    """Slots behind a token hold anything finite: the future of its own sequence, or garbage."""
    shape = SHAPES["grouped"]
    pages, story = one_story(shape, 120)
    (want,) = attention(shape, pages, [(story, 0, 120)], BEST)
    fresh = Pages(8, shape.n_kv, shape.head_dim)
    fresh.halves[:] = np.finfo(np.float16).max
    for i in range(70):
        fresh.put(story.table, i, story.k[i], story.v[i])
    (got,) = attention(shape, fresh, [(story, 30, 70)], BEST)
    assert np.array_equal(got, want[30:70])


def test_large_scores() -> None:
    """Scores so far apart that all weights but one vanish, and so low that none may."""
    shape = Shape(1, 2, 16)
    pages, story = one_story(shape, 100)
    for size in (1e4, -1e4):
        story.q[:] = size * story.k[50]
        (got,) = attention(shape, pages, [(story, 0, 100)], BEST)
        q, k, v = (x.astype(np.float64) for x in (story.q, story.k, story.v))
        want = ops.attention.meaning(
            q, k, v, np.arange(100), cache=0, scale=1.0, window=None, softcap=None
        )
        np.testing.assert_allclose(got, want, rtol=0, atol=2e-2)


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 9)), min_size=1, max_size=8
    ),
    st.integers(1, 5),
)
def test_groups_cover_every_token_once(parts: list[tuple[int, int, int]], most: int) -> None:
    sequences = np.concatenate([np.full(n, s, np.int32) for s, _, n in parts])
    positions = np.concatenate([np.arange(p, p + n, dtype=np.int32) for _, p, n in parts])
    groups = query_groups(sequences, positions, most)
    covered = [int(first) + i for first, n, _, _ in groups for i in range(n)]
    assert sorted(covered) == list(range(len(sequences)))
    for first, n, sequence, _ in groups:
        here_ = slice(first, first + n)
        assert n <= most
        assert np.all(sequences[here_] == sequence)
        assert np.all(np.diff(positions[here_]) == 1)
