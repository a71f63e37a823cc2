"""The plan: in which order which kernels run, over which buffers, in how many tiles.

All that a worker thread needs, as plain frozen data. `str(plan)` is its text form: one line an
entry, made to be read and diffed, and `parse_plan` reads it back to an equal plan:

    plan 1
    scalars tokens wanted
    kernel rms_norm_576 = 5c0e8f
    buffer x: arena 2359296 at 0
    buffer blk.0.attn_norm.weight: weight 2304 at 113246208

    phase 0
      rms_norm_576(@x, @blk.0.attn_norm.weight+0, 576, 1e-05, $tokens) * 1 tokens  # layer 0
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from satchel.base.errors import KernelError

SCHEMA = 1  # the first line of the text form; raised when its meaning changes
MAX_F32 = (2 - 2**-23) * 2.0**127
KINDS = ("arena", "weight", "kv", "input", "output", "scratch")


@dataclass(frozen=True, slots=True)
class Buffer:
    """`bytes` of memory, `offset` bytes after the start of the memory of its kind."""

    name: str
    bytes: int
    kind: str
    offset: int = 0

    def __str__(self) -> str:
        return f"buffer {self.name}: {self.kind} {self.bytes} at {self.offset}"


@dataclass(frozen=True, slots=True)
class Ref:
    """The address `offset` bytes into a buffer."""

    buffer: str
    offset: int = 0

    def __str__(self) -> str:
        return f"@{self.buffer}+{self.offset}" if self.offset else f"@{self.buffer}"


@dataclass(frozen=True, slots=True)
class Int:
    """A 64-bit integer, known when the plan is made."""

    value: int

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Float:
    """A number handed over in the low `bits` (32 or 64) of its slot."""

    value: float
    bits: int = 32

    @property
    def word(self) -> int:
        """The slot's content."""
        return int.from_bytes(struct.pack("<f" if self.bits == 32 else "<d", self.value), "little")

    def __str__(self) -> str:
        return repr(self.value) + ("" if self.bits == 32 else f":f{self.bits}")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A 64-bit integer that is given anew at each run."""

    name: str

    def __str__(self) -> str:
        return f"${self.name}"


Arg: TypeAlias = Ref | Int | Float | Scalar


@dataclass(frozen=True, slots=True)
class Count:
    """`factor` tiles, or `factor` for each one of a scalar."""

    factor: int
    scalar: str | None = None

    def at(self, scalars: Mapping[str, int]) -> int:
        """The number of tiles in a run with these scalars."""
        return self.factor * (1 if self.scalar is None else scalars[self.scalar])

    def __str__(self) -> str:
        return f"{self.factor} {self.scalar}" if self.scalar else str(self.factor)


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel over all its tiles. Steps of one phase must not depend on each other."""

    kernel: str
    args: tuple[Arg, ...]
    tiles: Count
    phase: int
    note: str = ""

    def __str__(self) -> str:
        call = f"{self.kernel}({', '.join(map(str, self.args))}) * {self.tiles}"
        return f"{call}  # {self.note}" if self.note else call


@dataclass(frozen=True)
class Plan:
    """Steps in order of their phases; a phase starts when all steps of earlier ones are done.

    `kernels` maps a kernel's name to the key of the object that holds it.
    """

    steps: tuple[Step, ...]
    buffers: tuple[Buffer, ...]
    scalars: tuple[str, ...]
    kernels: Mapping[str, str] = field(hash=False)

    def buffer(self, name: str) -> Buffer:
        """The buffer of this name; raises KernelError when the plan has none."""
        for buffer in self.buffers:
            if buffer.name == name:
                return buffer
        raise KernelError(f"the plan has no buffer {name!r}")

    def bytes_of(self, kind: str) -> int:
        """How much memory all buffers of a kind need together, in bytes."""
        return max((b.offset + b.bytes for b in self.buffers if b.kind == kind), default=0)

    def __str__(self) -> str:
        lines = [f"plan {SCHEMA}", " ".join(("scalars", *self.scalars))]
        lines += [f"kernel {name} = {key}" for name, key in self.kernels.items()]
        lines += map(str, self.buffers)
        phase = None
        for step in self.steps:
            if step.phase != phase:
                phase = step.phase
                lines += ["", f"phase {phase}"]
            lines.append(f"  {step}")
        return "\n".join(lines) + "\n"

    def check(self) -> Plan:
        """This plan, when it is sound; raises KernelError naming the first thing that is not."""
        _check_names(self)
        buffers = {b.name: b for b in self.buffers}
        scalars = frozenset(self.scalars)
        phase = 0
        for i, step in enumerate(self.steps):
            where = f"step {i} ({step.kernel})"
            if step.phase < phase:
                raise KernelError(
                    f"{where}: phase {step.phase} after phase {phase}; order the steps by phase"
                )
            phase = step.phase
            if step.kernel not in self.kernels:
                raise KernelError(f"{where}: the plan names no object for this kernel")
            if step.tiles.factor < 0 or not _fits(step.tiles.factor):
                raise KernelError(f"{where}: {step.tiles.factor} tiles; give a number from 0 up")
            if step.tiles.scalar is not None and step.tiles.scalar not in scalars:
                raise KernelError(
                    f"{where}: tiles by scalar {step.tiles.scalar!r}, which is not declared"
                )
            if step.note != step.note.strip() or not (step.note.isprintable()):
                raise KernelError(f"{where}: a note is one printable line without spaces around it")
            for arg in step.args:
                _check_arg(arg, buffers, scalars, where)
        return self


_NAME = r"[A-Za-z_][\w./\-]*"
_is_name = re.compile(_NAME, re.ASCII).fullmatch
_is_key = re.compile(r"[\w.\-]+", re.ASCII).fullmatch


def _fits(value: int) -> bool:
    return -(1 << 63) <= value < 1 << 63


def _check_names(plan: Plan) -> None:
    names = [b.name for b in plan.buffers]
    for what, given in (
        ("buffer", names),
        ("scalar", plan.scalars),
        ("kernel", list(plan.kernels)),
    ):
        seen: set[str] = set()
        for name in given:
            if not _is_name(name):
                raise KernelError(f"{name!r} can't name a {what}; use letters, digits and _ . / -")
            if name in seen:
                raise KernelError(f"two {what}s are named {name!r}")
            seen.add(name)
    for name, key in plan.kernels.items():
        if not _is_key(key):
            raise KernelError(f"kernel {name}: {key!r} can't be the key of an object")
    for b in plan.buffers:
        if b.kind not in KINDS:
            raise KernelError(
                f"buffer {b.name}: unknown kind {b.kind!r}; it is one of {', '.join(KINDS)}"
            )
        if b.bytes < 0 or b.offset < 0 or not _fits(b.offset + b.bytes):
            raise KernelError(
                f"buffer {b.name}: {b.bytes} bytes at {b.offset} is not a place in memory"
            )


def _check_arg(
    arg: Arg, buffers: Mapping[str, Buffer], scalars: frozenset[str], where: str
) -> None:
    match arg:
        case Ref(name, offset):
            if name not in buffers:
                raise KernelError(f"{where}: {arg} refers to a buffer that is not declared")
            if not 0 <= offset <= buffers[name].bytes:
                raise KernelError(
                    f"{where}: {arg} lies outside the buffer's {buffers[name].bytes} bytes"
                )
        case Int(value):
            if not _fits(value):
                raise KernelError(f"{where}: {value} does not fit 64 bits")
        case Float(value, bits):
            fits = bits == 64 or (bits == 32 and (math.isinf(value) or abs(value) <= MAX_F32))
            if not fits or math.isnan(value):
                raise KernelError(f"{where}: {arg} is not a 32- or 64-bit number")
        case Scalar(name):
            if name not in scalars:
                raise KernelError(f"{where}: {arg} is a scalar that is not declared")


_KERNEL = re.compile(rf"kernel ({_NAME}) = ([\w.\-]+)", re.ASCII)
_BUFFER = re.compile(rf"buffer ({_NAME}): (\w+) (\d+) at (\d+)", re.ASCII)
_PHASE = re.compile(r"phase (\d+)", re.ASCII)
_STEP = re.compile(rf"  ({_NAME})\((.*?)\) \* (\d+)(?: ({_NAME}))?(?:  # (.+))?", re.ASCII)
_REF = re.compile(rf"@({_NAME})(?:\+(\d+))?", re.ASCII)
_INT = re.compile(r"-?\d+", re.ASCII)
_FLOAT = re.compile(r"(-?(?:\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf))(?::f(64))?", re.ASCII)


def parse_plan(text: str) -> Plan:
    """The plan whose text form this is, checked; raises KernelError naming an unreadable line."""
    kernels: dict[str, str] = {}
    buffers: list[Buffer] = []
    steps: list[Step] = []
    scalars: tuple[str, ...] = ()
    phase = 0
    for number, line in enumerate(text.split("\n"), 1):
        if number == 1:
            if line != f"plan {SCHEMA}":
                raise KernelError(f"plan, line 1: {line[:40]!r} instead of 'plan {SCHEMA}'")
        elif found := _STEP.fullmatch(line):
            kernel, args, factor, scalar, note = found.groups()
            parsed = tuple(_parse_arg(a, number) for a in args.split(", ")) if args else ()
            steps.append(Step(kernel, parsed, Count(int(factor), scalar), phase, note or ""))
        elif found := _PHASE.fullmatch(line):
            phase = int(found[1])
        elif found := _BUFFER.fullmatch(line):
            buffers.append(Buffer(found[1], int(found[3]), found[2], int(found[4])))
        elif (found := _KERNEL.fullmatch(line)) and found[1] not in kernels:
            kernels[found[1]] = found[2]
        elif number == 2 and line.startswith("scalars"):
            scalars = tuple(line.split()[1:])
        elif line:
            raise KernelError(f"plan, line {number}: can't read {line[:60]!r}")
    return Plan(tuple(steps), tuple(buffers), scalars, kernels).check()


def _parse_arg(text: str, line: int) -> Arg:
    if found := _REF.fullmatch(text):
        return Ref(found[1], int(found[2] or 0))
    if text.startswith("$"):
        return Scalar(text[1:])
    if _INT.fullmatch(text):
        return Int(int(text))
    if found := _FLOAT.fullmatch(text):
        return Float(float(found[1]), int(found[2] or 32))
    raise KernelError(f"plan, line {line}: can't read the argument {text[:40]!r}")
