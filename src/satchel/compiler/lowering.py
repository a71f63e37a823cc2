"""A plan in the making: its steps, its buffers, and the recipes of its weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from satchel.base.errors import KernelError
from satchel.compiler.limits import Caches, Limits
from satchel.compiler.weights import Vector, Weight
from satchel.formats.packed import ROWS
from satchel.graph.graph import Node
from satchel.kernels import quantize
from satchel.kernels.attention import Heads
from satchel.lang.kernel import Build, Kernel
from satchel.lang.target import Target
from satchel.machine.tiles import Tiles
from satchel.runtime.batch import MAX_WANTED
from satchel.runtime.plan import Arg, Buffer, Count, Float, Int, Plan, Ref, Scalar, Step


@dataclass(frozen=True)
class Place:
    """Where a value's rows are: so many bytes into a buffer, `stride` elements from row to row."""

    buffer: str
    stride: int
    offset: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.buffer, self.offset)


@dataclass(frozen=True)
class Lowered:
    """A plan, its kernels by symbol, and what its weight buffers hold."""

    plan: Plan
    builds: dict[str, Build]
    weights: dict[str, Weight]
    attention: Heads  # of any layer: all are alike in what a step's groups depend on
    caches: tuple[Caches, ...]


Lower: TypeAlias = "Callable[[Lowering, Node], None]"
RULES: dict[str, Lower] = {}


def lowers(*ops: str) -> Callable[[Lower], Lower]:
    """Enter a function as the way to lower these ops."""

    def enter(rule: Lower) -> Lower:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return enter


@dataclass
class Lowering:
    """A plan in the making."""

    target: Target
    limits: Limits
    caches: tuple[Caches, ...]
    tiles: Tiles
    places: dict[Node, Place] = field(default_factory=dict[Node, Place])
    steps: list[Step] = field(default_factory=list[Step])
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    builds: dict[str, Build] = field(default_factory=dict[str, Build])
    weights: dict[str, Weight] = field(default_factory=dict[str, Weight])
    ready: dict[str, int] = field(
        default_factory=dict[str, int]
    )  # buffer -> the phase after its last writer
    attention: Heads | None = None
    run_lengths: set[tuple[str, int]] = field(
        default_factory=set[tuple[str, int]]
    )  # (scalar, rows of a run)

    def buffer(self, name: str, n_bytes: int, kind: str) -> str:
        self.buffers[name] = Buffer(name, n_bytes, kind)
        return name

    def rows(self, node: Node) -> tuple[str, int]:
        """The scalar that counts a node's rows, and the most there can be."""
        scalar = str(node.shape[0])
        return scalar, MAX_WANTED if scalar == "wanted" else self.limits.max_batch

    def new(self, node: Node, name: str = "") -> Place:
        """A buffer for a node's value: whole tiles of rows, codes with their scales."""
        width = width_of(node)
        stride = -(-width // ROWS) * ROWS
        row_bytes = (
            code_bytes(width) * int(str(node["digits"])) if node.dtype == "q8" else 4 * stride
        )
        layer = f"{node.layer}." if node.layer is not None else ""
        name = name or f"x{layer}{len(self.buffers)}"
        kind = "output" if name == "logits" else "arena"
        self.places[node] = place = Place(
            self.buffer(name, self.rows(node)[1] * row_bytes, kind), stride
        )
        return place

    def weight(self, name: str, recipe: Weight) -> Ref:
        """A weight buffer, made once for all who name it."""
        if name not in self.weights:
            self.weights[name] = recipe
            self.buffer(name, recipe.bytes, "weight")
        return Ref(name)

    def vector(self, node: Node) -> Ref:
        return self.weight(
            node.name, Vector((node.name,), (-(-int(node.shape[0]) // ROWS) * ROWS,))
        )

    def step(
        self,
        kernel: Kernel,
        node: Node,
        tiles: Count,
        writes: Place | str,
        args: dict[str, Any],
        note: str = "",
        **constants: Any,
    ) -> None:
        """Run a kernel, once all that its arguments name is there; `note` says what for, where it
        is not the node.
        """
        build = kernel.build(self.target, **constants)
        if self.builds.setdefault(build.name, build) != build:
            raise KernelError(f"two kernels of different constants are both called {build.name}")
        if args.keys() != kernel.slots.keys():
            raise TypeError(f"{kernel.name} takes {list(kernel.slots)}, not {list(args)}")
        slots = tuple(as_arg(args[name]) for name in kernel.slots)
        written = writes.buffer if isinstance(writes, Place) else writes
        read = [a.buffer for a in slots if isinstance(a, Ref) and a.buffer != written]
        phase = max((self.ready.get(b, 0) for b in read), default=0)
        self.ready[written] = max(self.ready.get(written, 0), phase + 1)
        note = note or (node.op if node.layer is None else f"layer {node.layer}: {node.op}")
        self.steps.append(Step(build.name, slots, tiles, phase, note))

    def runs(self, node: Node, factor: int, length: int) -> Count:
        """So many tiles for each run of `length` rows."""
        scalar, most = self.rows(node)
        if length >= most:
            return Count(factor)
        self.run_lengths.add((scalar, length))
        return Count(factor, runs_name(scalar, length))

    def each_row(self, node: Node) -> Count:
        return Count(1, self.rows(node)[0])


def runs_name(scalar: str, length: int) -> str:
    """The scalar that counts runs of so many rows."""
    return f"{scalar}_by_{length}"


def code_bytes(width: int) -> int:
    """A row of so many codes, with their scales and sums."""
    return width // quantize.CODES * quantize.BLOCK_BYTES


def width_of(node: Node) -> int:
    """The elements of a node's row, all axes but the first together."""
    n = 1
    for d in node.shape[1:]:
        n *= int(d)
    return n


def as_arg(x: Any) -> Arg:
    match x:
        case Place():
            return x.ref
        case str():
            return Scalar(x)
        case float():
            return Float(x)
        case int():
            return Int(x)
        case _:
            return x


NONE = Ref("none")
"""Stands for an argument that a kernel, with its constants, does not touch."""
