"""From a kernel to machine code that runs: builds, names, triples, threads, and a target without
features.
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from satchel.base.dtypes import f32, i32
from satchel.base.errors import KernelError, OptionError
from satchel.lang.kernel import Build, compile_llvm, kernel, source_key, target_machine
from satchel.lang.lower import lower
from satchel.lang.ops import cast, dot4, exp, muladd
from satchel.lang.print.python import Pointer, python_function
from satchel.lang.target import TARGETS, choose_target, host_isa, isa_named, target_named
from satchel.lang.trace import In, Out, acc, full, lanes, loop, maximum, real, size, sqrt

X86 = [t for t in TARGETS.values() if t.isa == "x86"]
HOST = next(t for t in TARGETS.values() if t.is_host)
"""The least of this machine's ISA: its code runs on any."""


@kernel
def norm(lo: size, hi: size, y: Out.f32, x: In.f32, n: size, eps: real):
    for row in loop(lo, hi):
        here, out = x.at(row * n), y.at(row * n)
        squares = acc(f32)
        for i in lanes(n):
            squares.value = muladd(here[i], here[i], squares.value)
        scale = 1.0 / sqrt(squares.value.sum() / cast(n, f32) + eps)
        for i in lanes(n):
            out[i] = here[i] * scale


@kernel
def softmax(lo: size, hi: size, y: Out.f32, x: In.f16, n: size):
    """n is a multiple of 16."""
    for row in loop(lo, hi):
        here, out = x.at(row * n), y.at(row * n)
        top, total = acc(f32, init=-1e30), acc(f32)
        for i in loop(0, n, 16):
            top.value = maximum(top.value, cast(here.load(i, 16), f32))
        most = top.value.top()
        for i in loop(0, n, 16):
            e = exp(cast(here.load(i, 16), f32) - most)
            out.store(e, i)
            total += e
        by = 1.0 / total.value.sum()
        for i in loop(0, n, 16):
            out.store(out.load(i, 16) * by, i)


@kernel
def dots(lo: size, hi: size, y: Out.i32, a: In.u8, b: In.i8, *, top: int):
    for i in loop(lo, hi):
        y.store(dot4(full(i32, 0), a.load(i * 64, 64), b.load(i * 64, 64), top=top), i * 16)


def run_here(build: Build, slots: list[Any], hi: int) -> None:
    """Call a build's machine code in this process."""
    import llvmlite.binding as llvm

    machine = target_machine(build.target)
    empty = llvm.parse_assembly("")
    empty.triple = machine.triple
    engine = llvm.create_mcjit_compiler(empty, machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(build.object()))
    engine.finalize_object()
    raw = [s.ctypes.data if isinstance(s, np.ndarray) else s for s in slots]
    words = np.zeros(len(raw), np.int64)
    for k, x in enumerate(raw):
        words[k : k + 1].view(np.float32 if isinstance(x, float) else np.int64)[0] = x
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kind(engine.get_function_address(build.name))(words.ctypes.data, 0, hi)


def meaning(build: Build, slots: list[Any], hi: int) -> None:
    given = [
        Pointer(s.view(np.uint8).reshape(-1)) if isinstance(s, np.ndarray) else s for s in slots
    ]
    python_function(lower(build.traced, ()))(given, 0, hi)


# ---- without features ----------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 15, 16, 40])
def test_the_least_target_runs_by_meanings_alone(n: int) -> None:
    """Equal bits: no rule applies, so the machine does what numpy does."""
    build = norm.build(HOST)
    random = np.random.default_rng(n)
    x = random.standard_normal((3, n)).astype(np.float32)
    got, want = np.zeros_like(x), np.zeros_like(x)
    run_here(build, [got, x, n, 1e-6], 3)
    meaning(build, [want, x, n, 1e-6], 3)
    expected = x / np.sqrt((x.astype(np.float64) ** 2).mean(1, keepdims=True) + 1e-6)
    assert np.allclose(got, expected, rtol=1e-5, atol=0)
    assert np.allclose(got, want, rtol=1e-6, atol=0)


def test_halfs_and_exponentials_without_features() -> None:
    build = softmax.build(HOST)
    x = (np.random.default_rng(1).standard_normal((2, 64)) * 4).astype(np.float16)
    got, want = np.zeros((2, 2, 64), np.float32)
    run_here(build, [got, x, 64], 2)
    meaning(build, [want, x, 64], 2)
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.allclose(got, e / e.sum(1, keepdims=True), rtol=2e-6, atol=1e-12)
    assert np.allclose(got, want, rtol=1e-6, atol=0)


@pytest.mark.parametrize("top", [127, 255])
def test_dots_without_features(top: int) -> None:
    random = np.random.default_rng(top)
    a = random.choice([0, 1, top - 1, top], 1024).astype(np.uint8)
    b = random.choice([-128, -1, 0, 127], 1024).astype(np.int8)
    got = np.zeros(256, np.int32)
    run_here(dots.build(HOST, top=top), [got, a, b], 16)
    assert np.array_equal(got, (a.astype(np.int32) * b).reshape(-1, 4).sum(1))


# ---- builds and targets --------------------------------------------------------------------------


def test_a_builds_name_tells_its_constants() -> None:
    assert dots.build(HOST, top=127).name == "dots_127"
    assert norm.build(HOST).name == "norm"
    assert source_key("a", "b") != source_key("ab", "")


def test_every_stage_can_be_seen() -> None:
    build = dots.build(X86[-1], top=255)
    assert "dot4" in str(build.traced)
    assert "vpdpbusd" in str(build.lowered)
    assert "define void @dots_255(ptr %a0, i64 %a1, i64 %a2)" in build.llvm


def test_llvms_refusal_is_an_error() -> None:
    with pytest.raises(KernelError, match="LLVM refuses a kernel"):
        compile_llvm("define void @f() { ret i32 0 }", HOST)


def test_code_for_this_machine_follows_its_conventions() -> None:
    import llvmlite.binding as llvm

    assert target_machine(HOST).triple == llvm.get_process_triple()
    for target in TARGETS.values():
        if not target.is_host:
            assert target_machine(target).triple.split("-")[0] == target.triple.split("-")[0]


def test_targets_are_chosen_by_features() -> None:
    for machine in ("x86_64", "AMD64", "x86"):
        assert choose_target(machine, ()).name == "x86-base"
        assert choose_target(machine, TARGETS["x86-avx2"].features | {"avx512f"}).name == "x86-avx2"
        assert choose_target(machine, TARGETS["x86-avx512vnni"].features).name == "x86-avx512vnni"
    for machine in ("aarch64", "arm64", "ARM64"):
        assert choose_target(machine, ()).name == "arm-neon"
        assert choose_target(machine, {"dotprod"}).name == "arm-dotprod"
    with pytest.raises(OptionError, match="there are no kernels for a sparc CPU"):
        choose_target("sparc", ())
    with pytest.raises(OptionError, match="no target is called 'z80'"):
        target_named("z80")
    assert isa_named(host_isa()) in {t.isa for t in TARGETS.values()}


def test_levels_of_an_isa_grow() -> None:
    """What choose_target relies on: within an ISA a later level has more, or other, features."""
    assert [t.features for t in X86] == sorted((t.features for t in X86), key=len)


def test_threads_build_at_once() -> None:
    def build(top: int) -> bytes:
        return dots.build(HOST, top=top).object()

    tops = [1, 3, 7, 15, 31, 63, 127, 255] * 3
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(build, tops))
    assert made == [build(top) for top in tops]
