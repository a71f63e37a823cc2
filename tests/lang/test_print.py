"""The printers' text, small; every literal and storage form."""

from __future__ import annotations

import math

import numpy as np
import pytest

from satchel.base.dtypes import bf16, f16, f32, f64, i8, i32, u8
from satchel.base.errors import KernelError
from satchel.lang.ir import Type, parse
from satchel.lang.print.llvm import constant, llvm_text
from satchel.lang.print.python import Pointer, python_function, python_text

SUM = """\
kernel sum(%0: ptr, %1: i64, %2: i64)
  %3: i64 = const {type=i64, value=4}
  %4: f32x4 = const {type=f32x4, value=0.5}
  %5: ptr = load %0 {type=ptr, constant=True}
  loop %7: i64 = %1 %2 %3, %6: f32x4 = %4
    %8: ptr = offset %5 %7
    %9: f16x4 = load %8 {type=f16x4, constant=False}
    %10: f32x4 = convert %9 {to=f32}
    %11: f32x4 = max %6 %10
  yield, %11
  then %12: f32x4
  store %12 %5
  prefetch %5
"""

LLVM = """\
define void @sum(ptr %a0, i64 %a1, i64 %a2) nounwind {
entry:
  %v1 = load ptr, ptr %a0, align 4, !invariant.load !0
  br label %head2
head2:
  %v5 = phi i64 [ %a1, %entry ], [ %v12, %body3 ]
  %v6 = phi <4 x float> [ <float 0x3FE0000000000000, float 0x3FE0000000000000, \
float 0x3FE0000000000000, float 0x3FE0000000000000>, %entry ], [ %v11, %body3 ]
  %v13 = icmp slt i64 %v5, %a2
  br i1 %v13, label %body3, label %done4
body3:
  %v7 = getelementptr i8, ptr %v1, i64 %v5
  %v8 = load <4 x i16>, ptr %v7, align 2
  %v9 = bitcast <4 x i16> %v8 to <4 x half>
  %v10 = fpext <4 x half> %v9 to <4 x float>
  %v14 = fcmp olt <4 x float> %v10, %v6
  %v11 = select <4 x i1> %v14, <4 x float> %v6, <4 x float> %v10
  %v12 = add i64 %v5, 4
  br label %head2, !llvm.loop !1
done4:
  store <4 x float> %v6, ptr %v1, align 4
  call void @llvm.prefetch.p0(ptr %v1, i32 0, i32 3, i32 1)
  ret void
}
"""

PYTHON = """\
def sum(p0, p1, p2):
    v3 = const_(type=T['i64'], value=4)
    v4 = const_(type=T['f32x4'], value=0.5)
    v5 = p0.load(T['ptr'])
    v6 = v4
    for i in range(int(p1[0]), int(p2[0]), int(v3[0])):
        v7 = index_(i)
        v8 = v5.offset(v7)
        v9 = v8.load(T['f16x4'])
        v10 = convert_(v9, to=D['f32'])
        v11 = max_(v6, v10)
        v6 = v11
    v12 = v6
"""


def test_llvm_text() -> None:
    assert names_in_order(llvm_text(parse(SUM))).startswith(names_in_order(LLVM))


def names_in_order(text: str) -> str:
    """The text with its values numbered as they come."""
    import re

    names: dict[str, str] = {}
    return re.sub(
        r"%[vhbd][a-z]*\d+|(?<=\n)[hbd][a-z]*\d+(?=:)",
        lambda m: names.setdefault(m[0].lstrip("%"), f"#{len(names)}"),
        text,
    )


def test_python_text() -> None:
    lines = python_text(parse(SUM)).splitlines()
    assert lines[:-2] == PYTHON.splitlines()[: len(lines) - 2]
    assert lines[-2:] == ["    v5.store(v12)", "    v5.prefetch()"]


def test_the_meaning_runs() -> None:
    memory = np.array([0, 1, 2, -3, 4, 7, math.nan, 9], np.float16).view(np.uint8)
    python_function(parse(SUM))([Pointer(memory)], 0, 9)
    assert np.array_equal(memory.view(np.float32), [4, 7, math.nan, 9], equal_nan=True)


def test_out_of_bounds_is_an_error() -> None:
    with pytest.raises(AssertionError, match="out of bounds"):
        python_function(parse(SUM))([Pointer(np.zeros(8, np.uint8))], 0, 9)


def test_several_functions_make_one_module() -> None:
    load = "%1: f32 = load %0 {{type=f32, constant=True}}"
    root = f"kernel {{}}(%0: ptr)\n  {load}\n  %2: f32 = sqrt %1\n  store %2 %0\n"
    text = llvm_text(parse(root.format("one")), parse(root.format("two")))
    assert text.count("define void") == 2
    assert text.count("declare float @llvm.sqrt.f32(float)") == 1


@pytest.mark.parametrize(
    ("kind", "number", "text"),
    [
        (Type(i8), -128, "-128"),
        (Type(i8), 255, "-1"),
        (Type(u8), 255, "255"),
        (Type(f32), 1.5, "0x3FF8000000000000"),
        (Type(f32), 0.1, "0x3FB99999A0000000"),
        (Type(f64), -math.inf, "0xFFF0000000000000"),
        (Type(f16), 1.0, "15360"),
        (Type(bf16), -2.0, "49152"),
        (Type(i32, 2), 7, "<i32 7, i32 7>"),
        (Type(i32, 2), (7, -8), "<i32 7, i32 -8>"),
    ],
)
def test_literals(kind: Type, number: float, text: str) -> None:
    assert constant(kind, number) == text


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        (Type(i8), 256),
        (Type(i8), -129),
        (Type(u8), -1),
        (Type(f16), 65520.0),
        (Type(f32), 1e39),
        (Type(f32, 4), (1.0, 2.0)),
    ],
)
def test_numbers_that_do_not_fit(kind: Type, number: float) -> None:
    with pytest.raises(KernelError, match="no "):
        constant(kind, number)


def test_an_op_is_not_printed() -> None:
    text = "kernel f(%0: ptr)\n  %1: f32 = const {type=f32, value=0.0}\n  %2: f32 = exp2 %1\n"
    with pytest.raises(KernelError, match="exp2 has no LLVM form: lower it first"):
        llvm_text(parse(text))
