"""The native loop that runs a plan: one call a run from Python; workers wait inside theirs.

`workers.ll` is its text, with a few words to fill in. The caller of `run` is worker 0 and the only
one it depends on: all workers walk the same phases and claim tiles of the same steps; who sleeps
through a run merely claims nothing. What holds it together:

- A run has an epoch. A step's `total` is (epoch << 32 | its tiles), its `claim` is (epoch << 32 |
  tiles not yet claimed), or anything of another epoch while no one has claimed. A claim is a
  compare-exchange on `claim`, so each tile is claimed once. A worker that comes late, with an epoch
  that is over, finds no tiles left or a foreign `total`: it reads `claim` before `total`, and `run`
  writes all totals before anyone can claim, so its compare-exchange can't hit the new epoch.
- A phase counts its tiles `done`, ever growing; it is over when that reaches `target`. A worker
  waits for this count only, never for another worker: those who hold no tile delay no one.
- Waiting is a bounded spin, then sleep in the kernel. Who sleeps says so in `sleepers` and looks
  again before it sleeps; who changes the word looks at `sleepers` after. Both sides are
  sequentially consistent, so no wake-up is lost.
- Claims are guided: a share of what is left, so they start large and end with single tiles.
"""

from __future__ import annotations

import ctypes
import importlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from satchel.base.errors import UnsupportedError
from satchel.machine import this_machine
from satchel.runtime.devices import cpu
from satchel.runtime.link import Linked, link
from satchel.runtime.objects import ObjectCache, Request, build_objects, object_key

Layout = list[tuple[str, str, int]]  # name, numpy's type code, count

CONTROL: Final[Layout] = [
    ("epoch", "i4", 1),  # the word that idle workers watch: alone in its cache line
    ("_0", "i4", 31),
    ("sleepers", "i4", 1),  # workers asleep on `epoch`
    ("_1", "i4", 31),
    ("stop", "i8", 1),  # what follows is only read while a run is on
    ("n_phases", "i8", 1),
    ("phases", "u8", 1),
    ("n_patches", "i8", 1),
    ("patches", "u8", 1),
    ("scalars", "u8", 1),
    ("shares", "i8", 1),  # a claim takes 1 / shares of what is left
    ("idle_spin", "i8", 1),  # in ticks
    ("wait_spin", "i8", 1),
    ("profile", "u8", 1),  # null, or a Span for each worker and step
    ("steps", "u8", 1),
    ("n_steps", "i8", 1),
    ("sleep_call", "u8", 1),  # the system's functions, by address
    ("wake_call", "u8", 1),
    ("_2", "i4", 4),
]
PHASE: Final[Layout] = [
    ("done", "i8", 1),
    ("target", "i8", 1),
    ("sleepers", "i4", 1),
    ("_0", "i4", 1),
    ("first", "u8", 1),
    ("last", "u8", 1),
    ("_1", "i4", 6),
]
STEP: Final[Layout] = [
    ("claim", "i8", 1),
    ("total", "i8", 1),
    ("kernel", "u8", 1),
    ("args", "u8", 1),
    ("factor", "i8", 1),
    ("scalar", "i8", 1),  # tiles = factor * scalars[scalar]
    ("_0", "i4", 4),
]
PATCH: Final[Layout] = [("slot", "u8", 1), ("scalar", "i8", 1)]  # *slot = scalars[scalar]
SPAN: Final[Layout] = [("begin", "i8", 1), ("end", "i8", 1), ("tiles", "i8", 1)]

_LAYOUTS = {"Control": CONTROL, "Phase": PHASE, "Step": STEP, "Patch": PATCH, "Span": SPAN}
_TYPES = {"i4": "i32", "i8": "i64", "u8": "ptr"}


@dataclass(frozen=True)
class Native:
    """The functions of the loop; each releases the GIL while it runs."""

    run: Callable[[int], None]  # (control): one run of the plan, as worker 0
    attend: Callable[[int, int, int], None]  # (control, epochs seen, worker): until `stop`
    stop: Callable[[int], None]  # (control)
    now: Callable[[], int]  # ticks
    sleep_call: int  # addresses of the system's functions, for `Control`
    wake_call: int
    ticks_per_ns: float
    code: Linked


@lru_cache
def native(cache: ObjectCache) -> Native:
    """The loop for this machine, compiled unless the cache has it. Raises UnsupportedError."""
    isa, system = this_machine().isa, cpu.system()
    if isa not in cpu.ISAS:
        raise UnsupportedError(
            f"Satchel has no worker loop for {isa}; it runs on {', '.join(cpu.ISAS)}"
        )
    source = text(isa, system)
    key = object_key("workers", isa, source)
    objects = build_objects([Request(key, lambda: _compile(source, isa))], cache, n_workers=2)
    code = link(objects[key], ("run", "attend", "stop", "now"))
    sleep_call, wake_call = cpu.system_calls(system)
    i64, i32 = ctypes.c_int64, ctypes.c_int32
    now = ctypes.CFUNCTYPE(i64)(code["now"])
    return Native(
        run=ctypes.CFUNCTYPE(None, i64)(code["run"]),
        attend=ctypes.CFUNCTYPE(None, i64, i32, i64)(code["attend"]),
        stop=ctypes.CFUNCTYPE(None, i64)(code["stop"]),
        now=now,
        sleep_call=sleep_call,
        wake_call=wake_call,
        ticks_per_ns=_ticks_per_ns(now),
        code=code,
    )


def text(isa: str, system: str) -> str:
    """The LLVM text of the loop for an instruction set and a system, as `sys.platform` has it."""
    own = cpu.ISAS[isa]
    body = Path(__file__).with_name("workers.ll").read_text(encoding="utf-8") + cpu.SLEEP[system]
    for word, value in {
        "futex": str(own.futex),
        "clock": own.clock,
        "pause": own.pause,
        "step_bytes": str(size(STEP)),
    }.items():
        body = body.replace(f"{{{word}}}", value)
    return "".join(map(_struct, _LAYOUTS)) + re.sub(r"field (%\S+), (\w+)\.(\w+)", _field, body)


def _ticks_per_ns(now: Callable[[], int]) -> float:
    """How fast `now` runs: near enough to bound a spin."""
    ns, ticks = time.perf_counter_ns(), now()
    while time.perf_counter_ns() - ns < 200_000:
        pass
    return (now() - ticks) / (time.perf_counter_ns() - ns)


def _compile(source: str, isa: str) -> bytes:
    """An object that needs no other and may lie anywhere in memory."""
    llvm: Any = importlib.import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        features=cpu.ISAS[isa].features, opt=2, reloc="pic", codemodel="small"
    )
    module = llvm.parse_assembly(source)
    module.verify()
    passes = llvm.create_pass_builder(machine, llvm.PipelineTuningOptions(speed_level=2))
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)


def size(layout: Layout) -> int:
    """The bytes of one record."""
    return sum(int(code[1]) * count for _, code, count in layout)


def _struct(name: str) -> str:
    """The LLVM type of a record."""
    fields = (
        _TYPES[code] if count == 1 else f"[{count} x {_TYPES[code]}]"
        for _, code, count in _LAYOUTS[name]
    )
    return f"%{name} = type {{ {', '.join(fields)} }}\n"


def _field(found: re.Match[str]) -> str:
    """`field %p, Record.name` is the address of a field of the record at %p."""
    base, record, name = found.groups()
    index = [field for field, _, _ in _LAYOUTS[record]].index(name)
    return f"getelementptr inbounds %{record}, ptr {base}, i32 0, i32 {index}"
