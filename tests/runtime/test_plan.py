"""Plans: the text form reads back, and `check` refuses what does not hold together."""

from __future__ import annotations

import dataclasses
import string
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import KernelError
from satchel.runtime.plan import (
    KINDS,
    Arg,
    Buffer,
    Count,
    Float,
    Int,
    Plan,
    Ref,
    Scalar,
    Step,
    parse_plan,
)

LETTERS = string.ascii_letters + "_"
names = st.builds(
    str.__add__,
    st.sampled_from(LETTERS),
    st.text(f"{LETTERS}{string.digits}./-", max_size=12),
)
notes = st.text(st.characters(exclude_categories=("C", "Z")), max_size=20)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    buffers = tuple(
        Buffer(
            name,
            draw(st.integers(0, 1 << 40)),
            draw(st.sampled_from(KINDS)),
            draw(st.integers(0, 1 << 40)),
        )
        for name in draw(st.lists(names, min_size=1, max_size=4, unique=True))
    )
    scalars = tuple(draw(st.lists(names, min_size=1, max_size=3, unique=True)))
    kernels = {
        k: draw(st.text("0123456789abcdef", min_size=4, max_size=64))
        for k in draw(st.sets(names, min_size=1))
    }
    refs = st.sampled_from(buffers).flatmap(
        lambda b: st.builds(Ref, st.just(b.name), st.integers(0, b.bytes))
    )
    floats = st.one_of(
        st.builds(Float, st.floats(allow_nan=False, width=32), st.just(32)),
        st.builds(Float, st.floats(allow_nan=False), st.just(64)),
    )
    args: st.SearchStrategy[Arg] = st.one_of(
        refs, st.builds(Int, int64), floats, st.builds(Scalar, st.sampled_from(scalars))
    )
    steps: list[Step] = []
    phase = 0
    for _ in range(draw(st.integers(0, 6))):
        phase += draw(st.integers(0, 2))
        count = Count(draw(st.integers(0, 1 << 40)), draw(st.sampled_from((None, *scalars))))
        kernel = draw(st.sampled_from(sorted(kernels)))
        steps.append(
            Step(kernel, tuple(draw(st.lists(args, max_size=5))), count, phase, draw(notes))
        )
    return Plan(tuple(steps), buffers, scalars, kernels)


@given(plans())
def test_text_reads_back(plan: Plan) -> None:
    text = str(plan.check())
    assert parse_plan(text) == plan
    assert str(parse_plan(text)) == text


@given(plans(), st.data())
def test_damaged_text_is_an_error_or_another_plan(plan: Plan, data: st.DataObject) -> None:
    text = str(plan)
    at = data.draw(st.integers(0, len(text) - 1))
    damaged = text[:at] + data.draw(st.text(max_size=3)) + text[at + data.draw(st.integers(0, 9)) :]
    try:
        read = parse_plan(damaged)
    except KernelError:
        return  # refused, as it should be; any other exception fails the test
    assert parse_plan(str(read)) == read


SMALL = Plan(
    steps=(
        Step(
            "norm",
            (Ref("x"), Ref("w", 64), Int(-3), Float(1e-05), Scalar("tokens")),
            Count(1, "tokens"),
            0,
            "layer 0",
        ),
        Step("add", (Ref("x", 4), Float(0.5, 64)), Count(8), 1),
    ),
    buffers=(Buffer("x", 256, "arena", 0), Buffer("w", 128, "weight", 4096)),
    scalars=("tokens",),
    kernels={"norm": "ab12", "add": "cd34"},
)

GOLDEN = """\
plan 1
scalars tokens
kernel norm = ab12
kernel add = cd34
buffer x: arena 256 at 0
buffer w: weight 128 at 4096

phase 0
  norm(@x, @w+64, -3, 1e-05, $tokens) * 1 tokens  # layer 0

phase 1
  add(@x+4, 0.5:f64) * 8
"""


def test_text_is_golden() -> None:
    assert str(SMALL) == GOLDEN
    assert parse_plan(GOLDEN) == SMALL


def test_sizes() -> None:
    assert SMALL.bytes_of("weight") == 4096 + 128
    assert SMALL.bytes_of("kv") == 0
    assert SMALL.buffer("w").offset == 4096
    assert [s.tiles.at({"tokens": 7}) for s in SMALL.steps] == [7, 8]


def changed(**fields: Any) -> Plan:
    """SMALL with other fields in its last step."""
    first, last = SMALL.steps
    return dataclasses.replace(SMALL, steps=(first, dataclasses.replace(last, **fields)))


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (changed(kernel="mul"), "no object"),
        (changed(args=(Ref("y"),)), "not declared"),
        (changed(args=(Ref("x", 257),)), "outside"),
        (changed(args=(Ref("x", -1),)), "outside"),
        (changed(args=(Int(1 << 63),)), "64 bits"),
        (changed(args=(Float(float("nan")),)), "number"),
        (changed(args=(Float(1.0, 16),)), "number"),
        (changed(args=(Float(1e300, 32),)), "number"),
        (changed(args=(Scalar("wanted"),)), "not declared"),
        (changed(tiles=Count(1, "wanted")), "not declared"),
        (changed(tiles=Count(-1)), "tiles"),
        (changed(phase=-1), "phase"),
        (changed(note="two\nlines"), "note"),
        (dataclasses.replace(SMALL, buffers=(*SMALL.buffers, SMALL.buffers[0])), "two buffers"),
        (dataclasses.replace(SMALL, buffers=(*SMALL.buffers, Buffer("z", 1, "heap"))), "kind"),
        (dataclasses.replace(SMALL, buffers=(*SMALL.buffers, Buffer("z", -1, "arena"))), "memory"),
        (dataclasses.replace(SMALL, buffers=(*SMALL.buffers, Buffer("a b", 1, "arena"))), "name"),
        (dataclasses.replace(SMALL, kernels={**SMALL.kernels, "k": "no key"}), "key"),
    ],
)
def test_check_refuses(plan: Plan, says: str) -> None:
    with pytest.raises(KernelError, match=says):
        plan.check()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 1),
        ("plan 999\n", 1),
        (GOLDEN.replace("phase 1", "phase one"), 11),
        (GOLDEN.replace("0.5:f64", "0.5:f16"), 12),
        (GOLDEN.replace("-3", "--3"), 9),
        (GOLDEN.replace("kernel add = cd34", "kernel norm = cd34"), 4),
    ],
)
def test_errors_name_the_line(text: str, line: int) -> None:
    with pytest.raises(KernelError, match=f"line {line}:"):
        parse_plan(text)
