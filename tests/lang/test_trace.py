"""What a kernel's source means, run by numpy; and errors that name the kernel's line."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from satchel.base.dtypes import f16, f32, i8, i32, u8
from satchel.base.errors import KernelError
from satchel.lang.kernel import Kernel, kernel
from satchel.lang.lower import check, lower
from satchel.lang.ops import cast, dot4
from satchel.lang.print.python import Pointer, python_function
from satchel.lang.trace import (
    In,
    Out,
    acc,
    full,
    lanes,
    loop,
    maximum,
    real,
    select,
    size,
    splat,
    table,
    when,
)  # fmt: skip


def call(source: Kernel, *slots: Any, hi: int = 1, **constants: Any) -> None:
    """Run a kernel's meaning; arrays become pointers."""
    function = source.trace(source.name, **constants)
    check(function, "traced")
    meaning = lower(function, ())
    check(meaning, "meaning")
    given = [Pointer(s.view(np.uint8)) if isinstance(s, np.ndarray) else s for s in slots]
    python_function(meaning)(given, 0, hi)


# ---- lanes, loops and accs -----------------------------------------------------------------------


@kernel
def twice_and_sum(lo: size, hi: size, y: Out.f32, total: Out.f32, x: In.f32, n: size):
    sums = acc(f32)
    for i in lanes(n):
        y[i] = x[i] * 2.0
        sums += x[i]
    total[0] = sums.value.sum()


@pytest.mark.parametrize("n", range(41))
def test_lanes_touch_all_elements_and_no_more(n: int) -> None:
    x = np.arange(1, n + 1, dtype=np.float32)
    y, total = np.full(n + 1, -1, np.float32), np.zeros(1, np.float32)
    call(twice_and_sum, y, total, x, n)
    assert np.array_equal(y, [*(2 * x), -1])
    assert total[0] == x.sum()


@kernel
def table_of_sums(lo: size, hi: size, y: Out.i32, n: size):
    """y[i] = 10 * i + 0 + 1 + ... + i; the last is the sum of all of those."""
    whole = acc(i32, 1)
    for i in loop(n):
        row = acc(i32, 1)
        for j in loop(i + 1):
            row += cast(j, i32)
        row.value = row.value + cast(i, i32) * 10
        y[i] = row.value
        whole += row.value
    y[n] = whole.value


def test_an_acc_may_be_born_in_a_loop() -> None:
    y = np.zeros(6, np.int32)
    call(table_of_sums, y, 5)
    rows = [10 * i + sum(range(i + 1)) for i in range(5)]
    assert y.tolist() == [*rows, sum(rows)]


@kernel
def read_only(lo: size, hi: size, y: Out.i32, n: size):
    seven = acc(i32, 1, 7)
    total = acc(i32, 1)
    for _ in loop(n):
        for _ in loop(n):
            total += seven.value
    y[0] = total.value + seven.value


def test_an_acc_that_is_only_read_keeps_its_value() -> None:
    y = np.zeros(1, np.int32)
    call(read_only, y, 3)
    assert y[0] == 7 * 9 + 7


@kernel
def steps(lo: size, hi: size, y: Out.i32, n: size):
    count = acc(i32, 1)
    for i in loop(3, n, 4):
        y[i] = 1
        count += 1
    y[0] = count.value


def test_a_loop_of_no_iterations_leaves_the_accs() -> None:
    for n in (0, 3, 4, 12):
        y = np.zeros(16, np.int32)
        call(steps, y, n)
        assert np.flatnonzero(y[1:]).tolist() == [i - 1 for i in range(3, n, 4)]
        assert y[0] == len(range(3, n, 4))


@kernel
def keep_large(lo: size, hi: size, y: Out.i32, x: In.i32):
    best = acc(i32, 1, -1)
    for i in loop(lo, hi):
        for _ in when(best.value < x[i]):
            best.value = x[i]
        y[i] = best.value


def test_when() -> None:
    x = np.array([3, 1, 4, 1, 5, 9, 2], np.int32)
    y = np.zeros(7, np.int32)
    call(keep_large, y, x, hi=7)
    assert np.array_equal(y, np.maximum.accumulate(x))


@kernel
def fibonacci(lo: size, hi: size, y: Out.i32):
    a, b = acc(i32, 1, 0), acc(i32, 1, 1)
    for i in loop(lo, hi):
        y[i] = a.value
        a.value, b.value = b.value, a.value + b.value


def test_accs_change_together() -> None:
    y = np.zeros(8, np.int32)
    call(fibonacci, y, hi=8)
    assert y.tolist() == [0, 1, 1, 2, 3, 5, 8, 13]


@kernel
def look_up(lo: size, hi: size, y: Out.i8, *, numbers: tuple[int, ...]):
    y.store(table(i8, numbers)[::-1])


def test_constants_and_tables() -> None:
    y = np.zeros(4, np.int8)
    call(look_up, y, numbers=(1, -128, 127, 5))
    assert y.tolist() == [5, 127, -128, 1]


@kernel
def scaled(lo: size, hi: size, y: Out.f32, x: In.f16, by: real):
    for i in loop(lo, hi):
        y[i] = cast(x[i], f32) * by


def test_scalars_and_halfs() -> None:
    y = np.zeros(3, np.float32)
    call(scaled, y, np.array([1, 2.5, -3], np.float16), 0.5, hi=3)
    assert y.tolist() == [0.5, 1.25, -1.5]


def test_what_is_computed_twice_is_traced_once() -> None:
    @kernel
    def same(lo: size, hi: size, y: Out.f32, x: In.f32):
        a = full(f32, 2.0)
        y.store(maximum(a * a, a * a) + a * a)

    text = str(same.trace("same"))
    assert text.count("mul") == 1


# ---- errors --------------------------------------------------------------------------------------

Body = Callable[..., object]


def mixes(y: Any, x: Any) -> None:
    y[0] = x[0] + cast(x[0], i32)


def other_lanes(y: Any, x: Any) -> None:
    y.store(x.load(0, 4) + x.load(0, 8))


def too_large(y: Any, x: Any) -> None:
    y[0] = cast(cast(x[0], i8) + 256, f32)


def negative(y: Any, x: Any) -> None:
    y[0] = cast(cast(x[0], u8) & -1, f32)


def no_float(y: Any, x: Any) -> None:
    y[0] = x[0] + 1e39


def a_word(y: Any, x: Any) -> None:
    y[0] = x[0] + "one"


def fraction(y: Any, x: Any) -> None:
    y[0] = cast(cast(x[0], i32) + 0.5, f32)


def halfs(y: Any, x: Any) -> None:
    half = cast(x[0], f16)
    y[0] = cast(half + half, f32)


def wrong_row(y: Any, x: Any) -> None:
    y[0] = cast(x[0], i32)


def wrong_acc(y: Any, x: Any) -> None:
    total = acc(f32, 1)
    total.value = x.load(0, 4)


def equality(y: Any, x: Any) -> None:
    y[0] = select(x[0] == 0, x[0], 1.0)


def truth(y: Any, x: Any) -> None:
    if x[0] < 0:
        y[0] = x[0]


def after_loop(y: Any, x: Any) -> None:
    v = x[0]
    for i in loop(4):
        v = x[i]
    y[0] = v + 1


def acc_after_loop(y: Any, x: Any) -> None:
    totals = []
    for i in loop(4):
        totals.append(acc(f32, 1))
        totals[0] += x[i]
    y[0] = totals[0].value


def breaks(y: Any, x: Any) -> None:
    for i in loop(4):
        y[i] = x[i]
        break


def breaks_inside(y: Any, x: Any) -> None:
    for i in loop(4):
        for _ in loop(4):
            y[i] = x[i]
            break


def vector_length(y: Any, x: Any) -> None:
    for i in loop(cast(x.load(0, 4), i32)):
        y[i] = x[i]


def bad_dot(y: Any, x: Any) -> None:
    y.store(cast(dot4(full(i32, 0), full(i8, 0, 64), full(i8, 0, 64)), f32))


ERRORS: list[tuple[Body, str]] = [
    (mixes, "add mixes f32 with i32: convert one of them"),
    (other_lanes, "mixes f32x4 with f32x8: the lanes differ"),
    (too_large, "256 is no i8"),
    (negative, "-1 is no u8"),
    (no_float, r"1e\+39 is no f32"),
    (a_word, "'one' is no f32"),
    (fraction, "0.5 is no i32"),
    (halfs, "add does not calculate with f16: widen it"),
    (wrong_row, "a row of f32 can't take i32: convert it"),
    (wrong_acc, "an acc of f32 can't take f32x4: convert it"),
    (equality, r"compared by x.equals\(y\)"),
    (truth, "use select or when"),
    (after_loop, "add uses a value of a loop after it: make it an acc"),
    (acc_after_loop, "an acc made in a loop ends with it"),
    (breaks, "break and return do not leave a loop"),
    (breaks_inside, "break and return do not leave a loop"),
    (vector_length, "a position or length is a scalar, not i64x4"),
    (bad_dot, "dot4 takes u8 and i8, not i8 and i8"),
]


@pytest.mark.parametrize(("body", "message"), ERRORS, ids=lambda x: getattr(x, "__name__", ""))
def test_errors_name_the_line(body: Body, message: str) -> None:
    def source(lo, hi, y, x):
        body(y, x)

    source.__annotations__ = {"lo": size, "hi": size, "y": Out.f32, "x": In.f32}
    with pytest.raises(KernelError, match=message) as raised:
        Kernel(source).trace("kernel")
    where = re.match(r"(.*\.py):(\d+): ", str(raised.value))
    assert where is not None, raised.value
    assert where[1] == Path(__file__).name
    code = body.__code__
    assert int(where[2]) in {line for _, _, line in code.co_lines()}, raised.value


def test_kernel_code_runs_only_while_traced() -> None:
    with pytest.raises(KernelError, match=r"test_trace.py:\d+: kernel code runs only while"):
        full(f32, 1.0)


def test_a_failed_trace_leaves_nothing_behind() -> None:
    @kernel
    def bad(lo: size, hi: size, y: Out.f32):
        for i in loop(4):
            y[i] = splat(i)

    with pytest.raises(KernelError):
        bad.trace("bad")
    with pytest.raises(KernelError, match="only while"):
        full(f32, 1.0)


def test_threads_trace_at_once() -> None:
    want = str(table_of_sums.trace("t"))
    found: list[str] = []

    def work() -> None:
        found.extend(str(table_of_sums.trace("t")) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert found == [want] * 80


def test_slots_are_the_parameters_after_the_tiles() -> None:
    assert list(twice_and_sum.slots) == ["y", "total", "x", "n"]
