"""The native loop: its text compiles for every system and processor, and its records agree."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from satchel.runtime.devices import cpu
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
triple, features, *file = sys.argv[1:]
module = llvm.parse_assembly(sys.stdin.read())
module.triple = triple
module.verify()
machine = llvm.Target.from_triple(triple).create_target_machine(
    cpu="generic-rv64" if triple.startswith("riscv") else "", features=features, reloc="pic")
passes = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions(speed_level=2))
passes.getModulePassManager().run(module, passes)
if file:
    open(file[0], "wb").write(machine.emit_object(module))
else:
    print(machine.emit_assembly(module))
"""


def compiled(isa: str, system: str, triple: str, *file: str) -> str:
    """The loop's assembly, or its object in a file; made by a child, as LLVM may abort."""
    features = cpu.ISAS[isa].features
    done = subprocess.run(
        [sys.executable, "-c", COMPILE, triple, features, *file],
        input=text(isa, system),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(("isa", "system", "triple", "pause", "clock"), TARGETS)
def test_compiles(isa: str, system: str, triple: str, pause: str, clock: str) -> None:
    assembly = compiled(isa, system, triple)
    assert pause in assembly
    assert clock in assembly
    if isa == "x86_64":
        assert assembly.count("cmpxchg") == 1


# Four workers, phases of steps that count their tiles, and runs after pauses around the idle spin.
HARNESS = r"""
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "records.h"
enum { THREADS = 4, PHASES = 5, STEPS = 2, TILES = 23, RUNS = 400 };
void run(void *), attend(void *, int, int64_t), stop(void *);
int64_t now(void);
static _Alignas(128) struct Control control;
static _Alignas(128) struct Phase phases[PHASES];
static _Alignas(128) struct Step steps[PHASES * STEPS];
static int64_t scalars[] = {1}, counts[PHASES * STEPS][TILES], seen[PHASES];
static void count(int64_t *args, int64_t lo, int64_t hi) {
    int64_t step = args - counts[0], phase = step / TILES / STEPS;
    for (int64_t i = lo; i < hi; i++) args[i]++;
    if (phase) {  // all of the phase before must be there
        int64_t sum = 0;
        for (int k = 0; k < STEPS * TILES; k++) sum += counts[(phase - 1) * STEPS][k];
        if (sum % (STEPS * TILES)) printf("phase %d began early\n", (int)phase), exit(1);
    }
}
static void *work(void *index) { attend(&control, 0, (int64_t)index); return 0; }
int main(void) {
    for (int p = 0; p < PHASES; p++) {
        phases[p].first = (int64_t)(steps + STEPS * p);
        phases[p].last = (int64_t)(steps + STEPS * (p + 1));
        for (int s = STEPS * p; s < STEPS * (p + 1); s++) {
            steps[s].kernel = (int64_t)count, steps[s].args = (int64_t)counts[s];
            steps[s].factor = TILES;
        }
    }
    control.n_phases = PHASES, control.phases = (int64_t)phases, control.scalars = (int64_t)scalars;
    control.shares = 2 * THREADS, control.steps = (int64_t)steps, control.n_steps = PHASES * STEPS;
    control.sleep_call = control.wake_call = (int64_t)syscall;
    int64_t start = now();
    usleep(1000);
    control.wait_spin = (now() - start) / 50, control.idle_spin = (now() - start) / 20;
    pthread_t threads[THREADS];
    for (int64_t i = 1; i < THREADS; i++) pthread_create(threads + i, 0, work, (void *)i);
    for (int i = 0; i < RUNS; i++) {
        if (i % 4 == 0) usleep(i % 100);
        run(&control);
        for (int s = 0; s < PHASES * STEPS; s++)
            for (int k = 0; k < TILES; k++)
                if (counts[s][k] != i + 1) return printf("run %d step %d tile %d\n", i, s, k), 1;
    }
    stop(&control);
    for (int i = 1; i < THREADS; i++) pthread_join(threads[i], 0);
    puts("all tiles once");
}
"""


@pytest.mark.parametrize("isa", ["aarch64", "riscv64"])
def test_runs_on_others(isa: str, tmp_path: Path) -> None:
    """The loop's own machine code, with real threads, in an emulator."""
    program, source, loop = (str(tmp_path / name) for name in ("loop", "loop.c", "loop.o"))
    (tmp_path / "loop.c").write_text(HARNESS)
    (tmp_path / "records.h").write_text(
        "\n".join(
            f"struct {name} {{ {' '.join(map(c_field, layout))} }};"
            for name, layout in (("Control", CONTROL), ("Phase", PHASE), ("Step", STEP))
        )
    )
    compiled(isa, "linux", f"{isa}-linux-gnu", loop)
    gcc = [f"{isa}-linux-gnu-gcc", "-static", "-O1", "-pthread", source, loop, "-o", program]
    subprocess.run(gcc, check=True)
    done = subprocess.run(
        [f"qemu-{isa}", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout) == (0, "all tiles once\n")


def c_field(field: tuple[str, str, int]) -> str:
    name, code, count = field
    return (
        f"int{8 * int(code[1])}_t {name}[{count}];"
        if count > 1
        else f"int{8 * int(code[1])}_t {name};"
    )


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
