"""Every op, by every rule, on every target that can run here, over edge values, equals its
meaning.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from meaning_cases import Array, Case, Variant, cases, variants

from satchel.base.dtypes import BY_NAME, DType, bf16, f32, f64
from satchel.lang.ir import Type
from satchel.lang.lower import lower
from satchel.lang.ops import OPS
from satchel.lang.primitives import PRIMITIVES
from satchel.lang.print.python import Pointer, python_function
from satchel.lang.target import TARGETS, Target

HERE = Path(__file__).parent
SLOTS = 4
FILL = 0xA5
QEMU = {
    "arm-neon": ("qemu-aarch64", "-cpu", "cortex-a57"),
    "arm-dotprod": ("qemu-aarch64", "-cpu", "neoverse-n1"),
    "arm-i8mm": ("qemu-aarch64", "-cpu", "max"),
    "riscv-v": ("qemu-riscv64", "-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0"),
}
"""Emulated processors with the features of a target, and no later ones of those that rules ask
for.
"""
PACKAGES = {
    "qemu-aarch64": "qemu-user",
    "qemu-riscv64": "qemu-user",
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "riscv64-linux-gnu-gcc": "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
    "wasm-ld": "lld",
    "node": "nodejs",
}


def tool(name: str) -> str:
    """The path of a program; a missing one fails the test and says what to install."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: apt-get install {PACKAGES[name]}", pytrace=False)
    return path


def run(*words: str | Path) -> None:
    """A program that must end well; what it says is the failure's text."""
    paths = os.pathsep.join([str(HERE), *sys.path])
    done = subprocess.run(
        [str(w) for w in words], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert done.returncode == 0, (
        f"{Path(words[0]).name} ended with {done.returncode}: {done.stderr[-2000:]}"
    )


# ---- the image of memory -------------------------------------------------------------------------


@cache
def result_type(case: Case) -> Type:
    return case.trace()[1]


@cache
def meaning(case: Case) -> Array:
    """What the case makes of its rows, by numpy."""
    function, kind = case.trace()
    out = np.full(case.tiles * kind.lanes * kind.dtype.bytes, FILL, np.uint8)
    rows = [Pointer(row.view(np.uint8)) for row in case.rows]
    python_function(lower(function, ()))([*rows, Pointer(out)], 0, case.tiles)
    return out


def image_of(chosen: list[Variant]) -> tuple[Array, list[int]]:
    """Memory for all variants, and where each one's output lies. Elements are aligned to 4 bytes
    and no more.
    """
    places: dict[int, int] = {}
    parts: list[bytes] = []
    at = 16 + len(chosen) * 8 * (1 + SLOTS)

    def place(data: bytes, element: DType) -> int:
        nonlocal at
        gap = -at % 64 + min(4, element.bytes)
        parts.append(bytes([FILL]) * gap + data)
        at += gap + len(data)
        return at - len(data)

    records: list[int] = []
    outputs: list[int] = []
    for v in chosen:
        kind = result_type(v.case)
        for row, t in zip(v.case.rows, v.case.types, strict=True):
            if id(row) not in places:
                places[id(row)] = place(row.tobytes(), t.dtype)
        outputs.append(place(bytes([FILL]) * meaning(v.case).size, kind.dtype))
        slots = [*(places[id(row)] for row in v.case.rows), outputs[-1]]
        records += [v.case.tiles, *slots, *[0] * (SLOTS - len(slots))]
    head = np.array([len(chosen), 0, *records], np.uint64).tobytes()
    return np.frombuffer(head + b"".join(parts) + bytes([FILL]) * 64, np.uint8), outputs


# ---- comparison ----------------------------------------------------------------------------------


def as_float(x: Array, t: DType) -> Array:
    return (x.astype(np.uint32) << 16).view(np.float32) if t is bf16 else x


def agree(case: Case, got: Array, want: Array) -> Array:
    """Which elements are right: equal bits, but that all NaNs are one; or as near as the op
    promises.
    """
    t = result_type(case).dtype
    x, y = got.view(t.numpy), want.view(t.numpy)
    if not t.is_float:
        return x == y
    bits = DType("", "i", t.bits).numpy
    right = (x.view(bits) == y.view(bits)) | (np.isnan(as_float(x, t)) & np.isnan(as_float(y, t)))
    if case.op is OPS["muladd"]:
        a, b, c = (row.astype(np.longdouble) for row in case.rows)
        with np.errstate(all="ignore"):
            y = (a * b + c).astype(t.numpy)  # the product is exact for f32, nearly for f64
        right |= (np.isnan(x) & np.isnan(y)) | (x == y)
    if case.ulps and t in (f32, f64):
        right |= (np.signbit(x) == np.signbit(y)) & (abs(x.view(bits) - y.view(bits)) <= case.ulps)
    return right


def report(chosen: list[Variant], before: Array, after: Array, outputs: list[int]) -> list[str]:
    """A line for each variant that is wrong."""
    wrong: list[str] = []
    rest = before.copy()
    rest[8:16] = after[8:16]
    for v, at in zip(chosen, outputs, strict=True):
        want = meaning(v.case)
        got = after[at : at + want.size]
        rest[at : at + want.size] = got
        right = agree(v.case, got.copy(), want)
        if not right.all():
            k, n = int(np.argmin(right)), right.size
            t = result_type(v.case).dtype.numpy
            lanes = [row.size * k // n for row in v.case.rows]
            given = ", ".join(
                repr(row[i : i + max(1, row.size // n)])
                for row, i in zip(v.case.rows, lanes, strict=True)
            )
            difference = f"{got.view(t)[k]!r} is not {want.view(t)[k]!r}"
            wrong.append(f"{v.name}: {n - right.sum()} of {n}, as [{k}] of {given}: {difference}")
    if not np.array_equal(rest, after):
        wrong.append(f"memory at {np.flatnonzero(rest != after)[:8]} is overwritten")
    return wrong


# ---- targets -------------------------------------------------------------------------------------


def host_features() -> set[str]:
    import llvmlite.binding as llvm

    return {name for name, has in llvm.get_host_cpu_features().items() if has}


def can_run_here(target: Target) -> bool:
    return target.is_host and target.features <= host_features() | {"neon"}


def build_and_run(target: Target, folder: Path) -> None:
    child = (sys.executable, HERE / "meaning_child.py", target.name, folder)
    image, kernels = folder / "image", folder / "kernels.o"
    if can_run_here(target):
        run(*child, "run")
    elif target.isa == "wasm":
        run(*child)
        program = folder / "kernels.wasm"
        run(
            tool("wasm-ld"), "--no-entry", "--export-all", "--import-memory", kernels, "-o", program
        )
        run(tool("node"), HERE / "meaning_runner.mjs", program, image)
    elif target.name in QEMU:
        run(*child)
        gcc = "aarch64-linux-gnu-gcc" if target.isa == "arm" else "riscv64-linux-gnu-gcc"
        run(
            tool(gcc),
            "-O1",
            "-static",
            HERE / "meaning_runner.c",
            kernels,
            "-o",
            folder / "program",
        )
        qemu, *flags = QEMU[target.name]
        run(tool(qemu), *flags, folder / "program", image)
    else:
        pytest.fail(f"nothing here runs {target.name}", pytrace=False)


def runnable() -> list[str]:
    """x86 levels that this CPU lacks are compiled only (test_counts.py): no emulator here has
    them.
    """
    return [t.name for t in TARGETS.values() if can_run_here(t) or not t.is_host or t.name in QEMU]


@pytest.mark.slow
@pytest.mark.parametrize("name", runnable())
def test_every_variant_equals_its_meaning(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    chosen = list(variants(target))
    before, outputs = image_of(chosen)
    before.tofile(tmp_path / "image")
    try:
        build_and_run(target, tmp_path)
    except AssertionError as e:
        at = int(np.fromfile(tmp_path / "image", np.uint64, 2)[1])
        raise AssertionError(
            f"{chosen[at].name if at else 'before the first kernel'}: {e}"
        ) from None
    after = np.fromfile(tmp_path / "image", np.uint8)
    assert after[:8].tobytes() == after[8:16].tobytes(), "not all kernels were run"
    wrong = report(chosen, before, after, outputs)
    assert not wrong, f"{len(wrong)} of {len(chosen)} are wrong:\n" + "\n".join(wrong[:40])


def test_no_op_type_or_primitive_is_left_out() -> None:
    names = {case.name.split()[0] for case in cases()}
    assert OPS.keys() <= names
    made_by = {"offset": "load", "native": "dot4", "prefetch": "load"}
    with_shuffles = names | {"shuffle"} if "reverse" in names else names
    assert {made_by.get(p, p) for p in PRIMITIVES} <= with_shuffles
    stored = {t.dtype.name for case in cases() for t in case.types}
    assert stored == BY_NAME.keys() - {"i1"}


def test_exp2_is_as_near_as_it_says() -> None:
    for case in cases():
        if case.op is OPS["exp2"]:
            x = case.rows[0]
            inside = (x >= -126) & (x < 127.5)
            got = meaning(case).view(np.float32)[inside].astype(np.float64)
            want = np.exp2(x[inside].astype(np.float64))
            assert np.max(abs(got / want - 1)) < 2.5e-7


@pytest.mark.slow
def test_short_floats_are_exact() -> None:
    """Against numpy's own halfs, and bf16 as the upper half of an f32."""
    for case in cases():
        got = meaning(case)
        row = case.rows[0]
        with np.errstate(all="ignore"):
            if case.name.startswith("widen f16"):
                want, made = row.astype(np.float32), got.view(np.float32)
            elif case.name.startswith("narrow f16"):
                want, made = row.astype(np.float16), got.view(np.float16)
            else:
                continue
        assert np.array_equal(want, made, equal_nan=True), case.name
        assert np.array_equal(np.signbit(want), np.signbit(made)), case.name
