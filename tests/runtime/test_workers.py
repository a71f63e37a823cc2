"""The native loop: its text compiles for every system and processor, and its records agree."""

from __future__ import annotations

import subprocess
import sys

import pytest

from satchel.runtime import workers
from satchel.runtime.objects import ObjectCache
from satchel.runtime.workers import CONTROL, PATCH, PHASE, SPAN, STEP, native, size, text

TARGETS = [
    ("x86_64", "linux", "x86_64-linux-gnu", "pause", "rdtsc"),
    ("x86_64", "darwin", "x86_64-apple-darwin", "pause", "rdtsc"),
    ("x86_64", "win32", "x86_64-pc-windows-msvc", "pause", "rdtsc"),
    ("aarch64", "linux", "aarch64-linux-gnu", "yield", "CNTVCT_EL0"),
    ("aarch64", "darwin", "arm64-apple-darwin", "yield", "CNTVCT_EL0"),
    ("aarch64", "win32", "aarch64-pc-windows-msvc", "yield", "CNTVCT_EL0"),
    ("riscv64", "linux", "riscv64-linux-gnu", "pause", "rdtime"),
]
COMPILE = """
import sys
import llvmlite.binding as llvm
llvm.initialize_all_targets()
llvm.initialize_all_asmprinters()
triple, features = sys.argv[1:]
module = llvm.parse_assembly(sys.stdin.read())
module.triple = triple
module.verify()
machine = llvm.Target.from_triple(triple).create_target_machine(
    cpu="generic-rv64" if triple.startswith("riscv") else "", features=features, reloc="pic")
passes = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions(speed_level=2))
passes.getModulePassManager().run(module, passes)
print(machine.emit_assembly(module))
"""


@pytest.mark.parametrize(("isa", "system", "triple", "pause", "clock"), TARGETS)
def test_compiles(isa: str, system: str, triple: str, pause: str, clock: str) -> None:
    features = workers._ISA[isa][3]  # pyright: ignore[reportPrivateUsage]
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, triple, features],
        input=text(isa, system),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert pause in done.stdout
    assert clock in done.stdout
    if isa == "x86_64":  # the stores of a claim, of tiles done (one, inlined), of sleepers
        assert done.stdout.count("cmpxchg") == 1


def test_records_fill_cache_lines() -> None:
    assert size(PHASE) == size(STEP) == 64
    assert size(CONTROL) % 128 == 0
    assert (size(PATCH), size(SPAN)) == (16, 24)
    for layout in (CONTROL, PHASE, STEP, PATCH, SPAN):
        offset = 0
        for name, code, count in layout:  # each field where LLVM aligns it
            assert offset % int(code[1]) == 0, name
            offset += int(code[1]) * count


def test_the_clock_runs() -> None:
    loop = native(ObjectCache(None))
    first = loop.now()
    assert 0 < first <= loop.now()
    assert loop.ticks_per_ns > 0
