"""The text form reads back; damaged text and ill-formed functions are refused with a message."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import find, given, settings
from hypothesis import strategies as st
from meaning_cases import cases, edges

from satchel.base.dtypes import DType, f16, f32, f64, i8, i16, i32, i64, u8
from satchel.base.errors import KernelError
from satchel.lang import trace
from satchel.lang.ir import Function, Inst, Loop, Stmt, Type, Value, instructions, parse, parse_type
from satchel.lang.lower import LEGAL, check, is_legal, lower
from satchel.lang.ops import OPS, dot4, exp2, muladd, widen
from satchel.lang.target import TARGETS
from satchel.lang.trace import Row, Tracer, V, acc, emit, full, loop, tracing, when

DTYPES = (i8, u8, i16, i32, i64, f32, f64)


@st.composite
def functions(draw: st.DrawFn) -> Function:
    """A kernel of random arithmetic, in loops within loops, with accs that are born anywhere."""
    params = (V(Type(trace.ptr)), V(Type(i64)), V(Type(i64)))
    with tracing(Tracer()) as tracer:
        row = Row(params[0], draw(st.sampled_from(DTYPES)), constant=False)
        _statements(draw, row, params[1], 0)
    return Function("random", params, tracer.body())


def _statements(draw: st.DrawFn, row: Row, i: V, depth: int) -> None:
    lanes = draw(st.sampled_from((1, 4, 16)))
    total = acc(row.dtype, lanes, draw(st.integers(0, 3)))
    values = [row.load(i, lanes), full(row.dtype, draw(st.integers(0, 100)), lanes)]
    for _ in range(draw(st.integers(1, 5))):
        a, b = draw(st.sampled_from(values)), draw(st.sampled_from(values))
        op = draw(
            st.sampled_from(("add", "mul", "max", "select", "convert", "loop", "when", "acc"))
        )
        if op == "select":
            values.append(trace.select(a < b, a, b))
        elif op == "convert":
            values.append(trace.convert(trace.convert(a, i64), row.dtype))
        elif op == "acc":
            total += a
        elif op in ("loop", "when"):
            if depth < 3:
                for k in loop(i, draw(st.integers(0, 9))) if op == "loop" else when(i < 4):
                    total += b
                    _statements(draw, row, i if k is None else k, depth + 1)
            values.append(total.value)
        else:
            values.append(emit(op, a, b))
    row.store(values[-1], i)


@settings(max_examples=150, deadline=None)
@given(functions())
def test_random_functions_read_back(function: Function) -> None:
    check(function, "traced")
    again = parse(str(function))
    assert str(again) == str(function)
    check(again, "traced")
    lowered = lower(again, TARGETS["x86-avx2"].features)
    check(lowered, "lowered")
    assert str(parse(str(lowered))) == str(lowered)


def test_cases_read_back() -> None:
    for case in cases()[::7]:
        function, _ = case.trace()
        text = str(function)
        assert str(parse(text)) == text
        check(lower(parse(text), ()), "meaning")


def test_attributes_read_back() -> None:
    for value in (0.1, float("inf"), float("-inf"), -1.5, (1, 2), (1.5, float("-inf")), "a, b"):
        before = Inst(
            "native", (), (("name", value), ("type", Type(f16, 8)), ("to", i8)), Value(Type(f32))
        )
        after = parse(str(Function("f", (), (before,)))).body[0]
        assert isinstance(after, Inst)
        assert repr(after.attrs) == repr(before.attrs)


TEXT = """\
kernel sum(%0: ptr, %1: i64, %2: i64)
  %3: i64 = const {type=i64, value=1}
  %4: f32 = const {type=f32, value=0.0}
  loop %6: i64 = %1 %2 %3, %5: f32 = %4
    %7: ptr = offset %0 %6
    %8: f32 = load %7 {type=f32, constant=True}
    %9: f32 = add %5 %8
  yield, %9
  then %10: f32
  store %10 %0
"""


def test_a_written_text_is_a_function() -> None:
    assert str(parse(TEXT)) == TEXT
    check(parse(TEXT), "meaning")


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_text_is_refused_or_read(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(TEXT)))
    cut = data.draw(st.integers(0, 40))
    new = data.draw(st.text("%0123456789 :=,{}()abcdefilnoprstvx.\n'", max_size=8))
    with contextlib.suppress(KernelError):
        check(parse(TEXT[:at] + new + TEXT[at + cut :]), "traced")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kernel sum", "sum", "starts with 'kernel"),
        ("add %5 %8", "add %5 %11", "line 7: %11 is used before it is made"),
        ("add %5 %8", "add! %5", "line 7: .* is no statement"),
        ("%7: ptr", "%6: ptr", "line 5: '%6' can't name a new value"),
        ("f32 = add", "f31 = add", "'f31' is no type"),
        ("value=1", "value=f(1)", "line 2: .* are no attributes"),
        ("  yield, %9\n", "", "line 8: a loop's 'yield' is missing"),
        (
            "  yield, %9\n  then %10: f32\n",
            "  yield\n",
            "as many values as it carries|before it is made",
        ),
        ("loop %6: i64 = %1 %2 %3", "loop %6: i64 = %1 %2", "line 4: .* is no loop"),
        (
            "store %10 %0\n",
            "store %10 %0\n        store %10 %0\n",
            "is no statement|belongs to no loop",
        ),
    ],
)
def test_broken_text(old: str, new: str, message: str) -> None:
    with pytest.raises(KernelError, match=message):
        parse(TEXT.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("store %10", "store %8", "store uses a value before it is made, or after the loop"),
        ("%9: f32 = add", "%9: f64 = add", "add makes f32, not f64"),
        ("add %5 %8", "frob %5 %8", "frob is not legal once traced"),
        ("add %5 %8", "add %5 %6", "add mixes f32 with i64: convert one of them"),
        ("add %5 %8", "add %5 %5 %8", "add takes 2 arguments, not 3"),
        ("add %5 %8", "rem %5 %8", "rem takes integers, not f32"),
        (" {type=f32, constant=True}", "", "load lacks its attribute 'type'"),
        ("value=1}", "value=1.5}", "const 1.5 is no i64"),
        ("yield, %9", "yield, %6", "a loop carries values of changing types"),
        ("= %1 %2 %3", "= %1 %4 %3", "a loop does not count in i64"),
        (
            "%9: f32 = add %5 %8",
            "%9: f32 = native {name='x', type=f32}",
            "native is not legal once traced",
        ),
        ("store %10 %0", "%11: ptr = store %10 %0", "store makes nothing, not ptr"),
    ],
)
def test_check_refuses(old: str, new: str, message: str) -> None:
    assert old in TEXT
    with pytest.raises(KernelError, match=message):
        check(parse(TEXT.replace(old, new)), "traced")


def test_check_refuses_a_value_that_is_made_twice() -> None:
    one = Inst("const", (), (("type", Type(f32)), ("value", 1.0)), Value(Type(f32)))
    with pytest.raises(KernelError, match="made twice"):
        check(Function("f", (), (one, one)), "traced")


TYPE_ERRORS: list[tuple[str, tuple[Type, ...], dict[str, Any], str]] = [
    ("add", (Type(f16), Type(f16)), {}, "does not calculate with f16: widen it"),
    ("lt", (Type(f16, 4),) * 2, {}, "does not calculate with f16x4"),
    ("and", (Type(f32),) * 2, {}, "takes integers"),
    ("shl", (Type(f32),) * 2, {}, "takes integers"),
    ("sqrt", (Type(i32),), {}, "takes floats"),
    ("abs", (Type(u8),), {}, "takes signed numbers"),
    ("convert", (Type(i32),), {"to": f16}, "does not take i32 to f16: cast it"),
    ("convert", (Type(f32),), {"to": trace.i1}, "compare instead"),
    ("bitcast", (Type(i8, 3),), {"to": i32}, "can't cut i8x3 into i32"),
    ("splat", (Type(i8, 4),), {"lanes": 16}, "puts a scalar into lanes"),
    ("shuffle", (Type(i8, 4),), {"lanes": (4,)}, "does not have"),
    ("shuffle", (Type(i8, 4),) * 3, {"lanes": (4,)}, "one vector, two"),
    ("select", (Type(i32),) * 3, {}, "one truth value a lane"),
    ("offset", (Type(i64), Type(i64)), {}, "moves a ptr by an i64"),
    ("load", (Type(i64),), {"type": Type(f32), "constant": True}, "wants a ptr"),
    ("load", (Type(trace.ptr),), {"type": Type(trace.i1), "constant": True}, "truth values"),
]


@pytest.mark.parametrize(("op", "types", "attrs", "message"), TYPE_ERRORS, ids=lambda x: str(x))
def test_primitives_refuse(
    op: str, types: tuple[Type, ...], attrs: dict[str, Any], message: str
) -> None:
    args = tuple(Value(t) for t in types)
    inst = Inst(op, args, tuple(attrs.items()), Value(Type(f32)))
    with pytest.raises(KernelError, match=message):
        check(Function("f", args, (inst,)), "traced")


def test_a_half_is_converted_by_instructions_of_targets_only() -> None:
    args = (Value(Type(f16, 8)),)
    function = Function("f", args, (Inst("convert", args, (("to", f32),), Value(Type(f32, 8))),))
    check(function, "lowered")
    for stage in ("traced", "meaning"):
        with pytest.raises(KernelError, match="on some targets only"):
            check(function, stage)


def test_stages() -> None:
    """Ops are legal as traced only, instructions by name as lowered only."""
    for op in OPS:
        assert [is_legal(op, stage) for stage in LEGAL] == [True, False, False]
    assert LEGAL["lowered"] - LEGAL["meaning"] == {"native"}
    assert "native" not in LEGAL["traced"]


def test_lowering_replaces_every_op() -> None:
    params = (V(Type(trace.ptr)), V(Type(i64)), V(Type(i64)))
    with tracing(Tracer()) as tracer:
        x = Row(params[0], f16, constant=True).load(0, 16)
        y = exp2(muladd(widen(x), widen(x), widen(x)))
        s = dot4(full(i32, 0), full(u8, 1, 64), full(i8, 1, 64))
        Row(params[0], f32, constant=False).store(y + trace.convert(s, f32))
    function = Function("f", params, tracer.body())
    for target in TARGETS.values():
        lowered = lower(function, target.features)
        check(lowered, "lowered")
        assert {i.op for i in instructions(lowered.body)} <= LEGAL["lowered"]
    with pytest.raises(KernelError, match="no op is called frob"):
        lower(Function("f", (), (Inst("frob"),)), ())


def test_types_read_back() -> None:
    for t in (Type(f32), Type(u8, 64), Type(trace.ptr)):
        assert parse_type(str(t)) == t
    for text in ("", "f31", "x4", "f32x", "f32x4x4"):
        with pytest.raises(KernelError, match="is no type"):
            parse_type(text)


def count_loops(body: tuple[Stmt, ...]) -> int:
    return sum(1 + count_loops(s.body) for s in body if isinstance(s, Loop))


def test_the_strategy_makes_loops() -> None:
    with_loops = settings(max_examples=2000, deadline=None, database=None, derandomize=True)
    function = find(functions(), lambda f: count_loops(f.body) >= 2, settings=with_loops)
    assert function.body


def test_edges_hold_the_extremes() -> None:
    kinds: tuple[DType, ...] = (i8, u8)
    assert [(int(edges(t).min()), int(edges(t).max())) for t in kinds] == [(-128, 127), (0, 255)]
