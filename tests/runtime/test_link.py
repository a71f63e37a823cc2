"""Linking: our own loader equals LLVM's, on both processors it knows, and refuses what it must."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import KernelError
from satchel.machine import this_machine
from satchel.runtime import link
from satchel.runtime.devices import elf
from satchel.runtime.devices.elf import CanNotLoadError, Image

# Constants of several sizes, a table, a call within the object, a switch: all relocations at once.
SOURCE = """
@table = private constant [5 x i64] [i64 3, i64 1, i64 4, i64 1, i64 5], align 16
@names = private constant [2 x ptr] [ptr @table, ptr @table]
@bytes = private constant [7 x i8] c"satchel"

define internal double @inner(double %x) noinline nounwind {
  %y = fmul double %x, 0x400921FB54442D18
  ret double %y
}

define double @work(i64 %i) nounwind {
entry:
  %p = getelementptr [5 x i64], ptr @table, i64 0, i64 %i
  %n = load i64, ptr %p
  %q = getelementptr [7 x i8], ptr @bytes, i64 0, i64 %i
  %b = load i8, ptr %q
  %f = uitofp i8 %b to double
  %x = sitofp i64 %n to double
  %y = call double @inner(double %x)
  switch i64 %i, label %other [ i64 0, label %a
                                i64 1, label %b1
                                i64 2, label %c
                                i64 3, label %d ]
a:
  br label %end
b1:
  br label %end
c:
  br label %end
d:
  br label %end
other:
  br label %end
end:
  %k = phi double [1.5, %a], [2.25, %b1], [-7.125, %c], [1.0e10, %d], [0.1, %other]
  %lane = and i64 %i, 3
  %vec = insertelement <4 x float> <float 0.0, float 1.0, float 2.5, float 3.0>,
                       float 9.0, i64 %lane
  %m = extractelement <4 x float> %vec, i64 2
  %me = fpext float %m to double
  %s = fadd double %y, %k
  %t = fadd double %s, %f
  %u = fadd double %t, %me
  ret double %u
}

define i64 @first() nounwind {
  %v = load i64, ptr @table
  ret i64 %v
}
"""
EXPECTED = [
    n * 3.141592653589793 + k + b + m
    for n, k, b, m in zip(
        (3, 1, 4, 1, 5),
        (1.5, 2.25, -7.125, 1.0e10, 0.1),
        b"satch",
        (2.5, 2.5, 9, 2.5, 2.5),
        strict=True,
    )
]


def objects_for(triple: str, source: str = SOURCE) -> bytes:
    import llvmlite.binding as llvm

    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(source)
    module.verify()
    return machine.emit_object(module)


HOST = f"{this_machine().isa}-linux-gnu"


def calls(address: int) -> list[float]:
    function = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_int64)(address)
    return [function(i) for i in range(5)]


def test_equals_llvm() -> None:
    raw = objects_for(HOST)
    (functions, again), owner = elf.load([raw, raw])
    by_llvm = link._link_by_llvm(raw, ("work", "first"))  # pyright: ignore[reportPrivateUsage]
    assert set(functions) == {"work", "first"}
    assert calls(functions["work"]) == calls(by_llvm["work"]) == pytest.approx(EXPECTED, rel=1e-15)
    assert again["work"] != functions["work"]
    assert calls(again["work"]) == calls(functions["work"])
    del owner


HARNESS = r"""
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
int main(int n, char **argv) {  // image, base, code bytes, function
    char *base = (char *)strtoul(argv[2], 0, 0);
    static char raw[1 << 20];
    FILE *f = fopen(argv[1], "rb");
    size_t size = fread(raw, 1, sizeof raw, f);
    mmap(base, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    for (size_t i = 0; i < size; i++) base[i] = raw[i];
    mprotect(base, strtoul(argv[3], 0, 0), PROT_READ | PROT_EXEC);
    double (*work)(long) = (double (*)(long))strtoul(argv[4], 0, 0);
    for (long i = 0; i < 5; i++) printf("%.17g\n", work(i));
}
"""


def test_arm_code_runs_where_it_was_put(tmp_path: Path) -> None:
    image = Image([objects_for("aarch64-linux-gnu"), objects_for("aarch64-linux-gnu")])
    base, memory = 0x7000000000, bytearray(image.n_bytes)
    functions = image.put(memory, base)
    (tmp_path / "image").write_bytes(memory)
    (tmp_path / "harness.c").write_text(HARNESS)
    program = str(tmp_path / "harness")
    source = str(tmp_path / "harness.c")
    subprocess.run(["aarch64-linux-gnu-gcc", "-static", "-O1", source, "-o", program], check=True)
    for found in functions:
        places = map(hex, (base, image.n_code_bytes, found["work"]))
        done = subprocess.run(
            ["qemu-aarch64", program, str(tmp_path / "image"), *places],
            check=True,
            capture_output=True,
            text=True,
        )
        assert [float(line) for line in done.stdout.split()] == pytest.approx(EXPECTED, rel=1e-15)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("@x = global i64 0\ndefine ptr @f() { ret ptr @x }", "written"),
        ("declare void @g()\ndefine void @f() { call void @g()\n ret void }", "not in the object"),
    ],
)
def test_refuses(source: str, says: str) -> None:
    with pytest.raises(CanNotLoadError, match=says):
        elf.load([objects_for(HOST, source)])


def test_falls_back_on_llvm() -> None:
    """A call of the C library is beyond our loader."""
    source = """
    declare double @cos(double)
    define double @f(i64 %i) {
      %x = sitofp i64 %i to double
      %y = call double @cos(double %x)
      ret double %y
    }
    """
    linked = link.link(objects_for(HOST, source), ["f"])
    assert calls(linked["f"])[0] == 1.0


def test_what_is_missing() -> None:
    raw = objects_for(HOST)
    with pytest.raises(KernelError, match="nothing"):
        link.link(raw, ["nothing"])
    with pytest.raises(KernelError, match="no object"):
        link.link_all({"a": raw}, {"work": "b"})
    with pytest.raises(KernelError, match="can't be linked"):
        link.link(b"not an object", ["f"])


def test_no_llvm_is_imported() -> None:
    raw = objects_for(HOST)
    source = (
        "import sys\n"
        "from satchel.runtime.link import link\n"
        "linked = link(bytes.fromhex(sys.stdin.read()), ['work'])\n"
        "assert linked['work'] and not {'llvmlite', 'numpy'} & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        input=raw.hex(),
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_code_can_not_be_written() -> None:
    (functions,), owner = elf.load([objects_for(HOST)])
    rights: list[str] = []
    with open("/proc/self/maps") as maps:
        for line in maps:
            first, last, mode = line.replace("-", " ", 1).split()[:3]
            if int(first, 16) <= functions["work"] < int(last, 16):
                rights.append(mode)
    assert rights == ["r-xp"]
    del owner


RAW = objects_for(HOST)


@given(st.data())
def test_damage_is_refused_or_harmless(data: st.DataObject) -> None:
    """Objects come from a cache with checksums, but a reader of bytes never trusts them."""
    raw = bytearray(RAW)
    for _ in range(data.draw(st.integers(1, 6))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.sampled_from((len(raw), len(raw) // 2, 70)))]
    try:
        image = Image([bytes(raw)])
        if image.n_bytes < 1 << 24:
            image.put(bytearray(image.n_bytes), 1 << 40)
    except CanNotLoadError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_an_offset_beyond_all_memory_is_refused() -> None:
    raw = bytearray(RAW)
    raw[40:48] = (2**63 + 64).to_bytes(8, "little")  # where the sections' headers lie
    with pytest.raises(CanNotLoadError, match="damaged"):
        Image([bytes(raw)])
