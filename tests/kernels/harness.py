"""Kernels called as workers call them: here, or by an emulator in a process of its own.

A call's arrays are its memory: those that the kernel writes hold the results afterwards.
"""

from __future__ import annotations

import ctypes
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from satchel.base.dtypes import f32
from satchel.lang.kernel import Build, Kernel
from satchel.lang.target import TARGETS, Target, host_isa, isa_named
from satchel.machine import this_machine
from satchel.runtime.link import Linked, link

HERE = Path(__file__).parent
Arg = np.ndarray[Any, Any] | int | float
BASE = 0x10_0000_0000
"""Where an emulated process has the memory of its calls."""
EMULATORS = {
    "arm-neon": ("qemu-aarch64", "-cpu", "cortex-a57"),
    "arm-dotprod": ("qemu-aarch64", "-cpu", "neoverse-n1"),
    "arm-i8mm": ("qemu-aarch64", "-cpu", "max"),
}
ROOM = 64
"""Bytes before and after each array of an emulated process, to see writes outside of it."""


@dataclass(frozen=True)
class Call:
    """Tiles lo .. hi of a kernel, by the names of its arguments; an array may serve several."""

    build: Build
    args: dict[str, Arg]
    hi: int
    lo: int = 0

    def __post_init__(self) -> None:
        assert self.args.keys() == self.build.kernel.slots.keys()

    def slots(self, addresses: dict[int, int]) -> bytes:
        """The array of arguments, with each array's address by its id."""
        out = b""
        for name, kind in self.build.kernel.slots.items():
            x = self.args[name]
            if isinstance(x, np.ndarray):
                out += struct.pack("<Q", addresses[id(x)])
            else:
                out += struct.pack("<fxxxx" if kind is f32 else "<q", x)
        return out

    @property
    def arrays(self) -> list[np.ndarray[Any, Any]]:
        return [x for x in self.args.values() if isinstance(x, np.ndarray)]


def here() -> list[str]:
    """The targets that this machine itself runs."""
    isa, features = isa_named(host_isa()), this_machine().features
    return [
        t.name for t in TARGETS.values() if t.isa == isa and t.features <= set(features) | {"neon"}
    ]


def everywhere() -> list[str]:
    """The targets that this machine runs, itself or emulated."""
    return here() + [name for name in EMULATORS if name not in here()]


def call(kernel: Kernel, target: str, hi: int, args: dict[str, Arg], **constants: Any) -> None:
    """Run the tiles 0 .. hi of a kernel."""
    run([Call(kernel.build(TARGETS[target], **constants), args, hi)])


def run(calls: Sequence[Call]) -> None:
    """Run calls of kernels for one target, one after another."""
    if calls[0].build.target.name in here():
        for one in calls:
            _run_here(one)
    else:
        _run_there(calls, calls[0].build.target)


@cache
def _linked(build: Build) -> Linked:
    return link(build.object(), [build.name])


def _run_here(one: Call) -> None:
    slots = ctypes.create_string_buffer(one.slots({id(x): x.ctypes.data for x in one.arrays}))
    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    kind(_linked(one.build)[one.build.name])(ctypes.addressof(slots), one.lo, one.hi)


def _run_there(calls: Sequence[Call], target: Target) -> None:
    builds = {one.build.name: one.build for one in calls}
    numbers = {name: i for i, name in enumerate(builds)}
    arrays = {id(x): x for one in calls for x in one.arrays}
    image, places = bytearray(), dict[int, int]()
    for key, x in arrays.items():
        image += bytes(-len(image) % 64 + ROOM)
        places[key] = len(image)
        image += np.ascontiguousarray(x).tobytes() + bytes([0xA5]) * ROOM
    script: list[int] = []
    for one in calls:
        image += bytes(-len(image) % 64)
        script += [numbers[one.build.name], BASE + len(image), one.lo, one.hi]
        image += one.slots({key: BASE + at for key, at in places.items()})
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "image").write_bytes(image)
        (folder / "script").write_bytes(struct.pack(f"<{len(script)}q", *script))
        _emulate(target, builds, folder)
        after = (folder / "image").read_bytes()
    for key, x in arrays.items():
        at = places[key]
        assert after[at + x.nbytes : at + x.nbytes + ROOM] == bytes([0xA5]) * ROOM
        x.reshape(-1).view(np.uint8)[:] = np.frombuffer(after, np.uint8, x.nbytes, at)


def _emulate(target: Target, builds: dict[str, Build], folder: Path) -> None:
    for i, build in enumerate(builds.values()):
        (folder / f"{i}.o").write_bytes(_object(build))
    names = ", ".join(builds)
    table = f"typedef void kernel(void *, long, long);\nkernel {names};\n"
    (folder / "table.c").write_text(f"{table}kernel *const kernels[] = {{{names}}};\n")
    objects = [folder / f"{i}.o" for i in range(len(builds))]
    program = folder / "program"
    command = [tool("aarch64-linux-gnu-gcc"), "-O1", "-static", f"-DBASE={BASE}", "-o", program]
    subprocess.run([*command, HERE / "runner.c", folder / "table.c", *objects], check=True)
    emulator, *flags = EMULATORS[target.name]
    files = (folder / "script", folder / "image")
    subprocess.run([tool(emulator), *flags, program, *files], check=True)


@cache
def _object(build: Build) -> bytes:
    return build.object()


def tool(name: str) -> str:
    """The path of a program; a missing one fails the test and says what to install."""
    path = shutil.which(name)
    if path is None:
        pytest.fail(f"{name} is missing: sh tests/tools.sh installs it", pytrace=False)
    return path
