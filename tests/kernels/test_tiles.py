"""What kernels may choose freely changes no bit, and all that a file may ask for can be made."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from harness import here
from hypothesis import given, settings
from hypothesis import strategies as st
from kv import F16
from test_attention import SHAPES, attention, one_story
from test_matmul import product, tokens

from satchel.kernels.attention import group_shape
from satchel.kernels.matmul import pass_shape, run_length
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT, Tiles

BEST = here()[-1]
TWO = dict.fromkeys((BEST, here()[len(here()) // 2]))  # the best target, and one of fewer registers
ANY = st.builds(
    Tiles,
    tokens=st.none() | st.integers(1, 16),
    lanes=st.sampled_from((None, 4, 8, 16)),
    ahead_bytes=st.sampled_from((0, 1, 1536, 3072, 1 << 20)),
    longest_run=st.integers(1, 512),
    run_bytes=st.integers(1, 1 << 16),
    queries=st.none() | st.integers(1, 24),
)
few = settings(max_examples=4, deadline=None)


def test_by_default_as_was_measured() -> None:
    found = {
        name: (
            pass_shape(t, 1, DEFAULT),
            pass_shape(t, 2, DEFAULT)["widths"],
            group_shape(3, t.bits, t.registers, DEFAULT),
        )
        for name, t in TARGETS.items()
        if name in ("x86-base", "x86-avx2", "x86-avx512vnni", "arm-neon")
    }
    eight, four = (8, 4, 2, 1), (4, 2, 1)
    two = {"group_tokens": 8, "widths": (2, 1)}
    six = {"group_tokens": 8, "widths": (6, 3, 2, 1)}
    assert found == {
        "x86-base": ({"widths": four, "lanes": 4, "at_once": 1}, (2, 1), two | {"across": 1}),
        "x86-avx2": ({"widths": eight, "lanes": 8, "at_once": 8}, four, two | {"across": 2}),
        "x86-avx512vnni": ({"widths": eight, "lanes": 16, "at_once": 1}, four, six),
        "arm-neon": ({"widths": eight, "lanes": 8, "at_once": 8}, four, two | {"across": 2}),
    }
    assert [run_length(n, 8, DEFAULT) for n in (1, 30_000, 1 << 30)] == [256, 136, 16]


@given(ANY, st.sampled_from(sorted(TARGETS)), st.integers(1, 1 << 20), st.sampled_from((1, 2)))
def test_shapes_are_sound(free: Tiles, target: str, row_bytes: int, digits: int) -> None:
    """Widths fall to one, runs are whole passes."""
    assert free.are_sane
    t = TARGETS[target]
    shape = pass_shape(t, digits, free)
    rows = group_shape(3, t.bits, t.registers, free)
    for widths in (shape["widths"], rows["widths"]):
        assert widths[-1] == 1
        assert list(widths) == sorted(set(widths), reverse=True)
    length = run_length(row_bytes, digits * shape["widths"][0], free)
    assert length > 0
    assert length % shape["widths"][0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("target", TWO)
@few
@given(ANY, st.sampled_from(["Q4_0", "Q4_K", "Q6_K", "F16"]), st.sampled_from((1, 2)))
def test_no_bit_of_a_product_changes(target: str, free: Tiles, format: str, digits: int) -> None:
    if format == "F16":
        digits = 1
    made, x = product(target, format, 21, digits=digits), tokens(13)
    assert np.array_equal(made(x, free=free), made(x))


@pytest.mark.slow
@pytest.mark.parametrize("target", TWO)
@few
@given(st.integers(1, 24), st.sampled_from(["grouped", "odd", "gemma", "capped window"]))
def test_no_bit_of_attention_changes(target: str, queries: int, name: str) -> None:
    shape, t = SHAPES[name], TARGETS[target]
    pages, story = one_story(shape, 150, F16)
    free = dataclasses.replace(DEFAULT, queries=queries)
    form = {"across": 4} | group_shape(shape.per_kv, t.bits, t.registers, free)
    (want,) = attention(shape, pages, [(story, 0, 150)], target)
    (got,) = attention(shape, pages, [(story, 0, 150)], target, **form)
    assert np.array_equal(got, want)


def test_a_choice_of_each_kind_changes_no_bit() -> None:
    """What the slow tests look for, in one that every check runs."""
    made, x = product(BEST, "Q4_0", 21), tokens(13)
    free = Tiles(tokens=3, ahead_bytes=0, longest_run=6)
    assert np.array_equal(made(x, free=free), made(x))
