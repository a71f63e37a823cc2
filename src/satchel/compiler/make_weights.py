"""Weights made from the file: matrices by kernels, all at once on all cores; the rest by numpy."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from satchel.compiler.pipeline import object_request
from satchel.compiler.weights import Bytes, FileRows, Matrix, Weight
from satchel.files.checkpoint import Checkpoint
from satchel.formats.packed import ROWS, packed
from satchel.kernels.pack import pack
from satchel.lang.kernel import Build
from satchel.lang.target import Target
from satchel.runtime.executor import Executor
from satchel.runtime.link import link_all
from satchel.runtime.objects import ObjectCache, build_objects
from satchel.runtime.plan import Buffer, Count, Int, Plan, Ref, Step


def make_weights(
    checkpoint: Checkpoint,
    weights: Mapping[str, Weight],
    places: Mapping[str, Bytes],
    target: Target,
    objects: ObjectCache,
) -> None:
    """Fill `places`, the memory of each weight by its name, from the file, on every core."""
    packing = _Packing(target)
    for name, weight in weights.items():
        if isinstance(weight, Matrix):
            packing.add(checkpoint, weight, places[name])
        elif not isinstance(weight, FileRows):
            places[name][:] = weight.make(checkpoint)
    if packing.steps:
        packing.run(objects)
    _let_go(checkpoint, weights)


@dataclass
class _Packing:
    """A plan of one phase: a step for the whole tiles of each matrix, and one for what is left of
    its last tile, which is copied and filled up with rows of zeros.
    """

    target: Target
    steps: list[Step] = field(default_factory=list[Step])
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    memory: dict[str, int] = field(default_factory=dict[str, int])
    builds: dict[str, Build] = field(default_factory=dict[str, Build])
    kept: list[Bytes] = field(default_factory=list[Bytes])

    def add(self, checkpoint: Checkpoint, matrix: Matrix, out: Bytes) -> None:
        """Pack all tensors of a matrix into `out`."""
        tile = matrix.columns // packed(matrix.format).elements * packed(matrix.format).bytes
        stride = tile * (len(matrix.tensors) if matrix.interleaved else 1)
        to, at = self._buffer(out, "weight"), 0
        for name, n_rows in zip(matrix.tensors, matrix.rows, strict=True):
            raw, (whole, rest) = checkpoint.raw(name), divmod(n_rows, ROWS)
            if whole:
                self._step(matrix, Ref(to, at), raw, stride, whole)
            if rest:
                last = np.zeros((ROWS, raw.shape[1]), np.uint8)
                last[:rest] = raw[whole * ROWS :]
                self._step(matrix, Ref(to, at + whole * stride), last, stride, 1)
            at += tile if matrix.interleaved else tile * -(-n_rows // ROWS)

    def _step(self, matrix: Matrix, out: Ref, rows: Bytes, stride: int, tiles: int) -> None:
        build = pack.build(self.target, format=matrix.format)
        self.builds[build.name] = build
        n_blocks = matrix.columns // packed(matrix.format).elements
        args = (out, Ref(self._buffer(rows, "input")), Int(n_blocks), Int(stride))
        self.steps.append(Step(build.name, args, Count(tiles), 0))

    def _buffer(self, place: Bytes, kind: str) -> str:
        name = f"{kind}{len(self.buffers)}"
        self.buffers[name] = Buffer(name, place.nbytes, kind)
        self.memory[name] = place.ctypes.data
        self.kept.append(place)
        return name

    def run(self, objects: ObjectCache) -> None:
        n_cores = os.cpu_count() or 1
        requests = {name: object_request(build) for name, build in self.builds.items()}
        kernels = {name: request.key for name, request in requests.items()}
        code = link_all(build_objects(requests.values(), objects, n_cores), kernels)
        plan = Plan(tuple(self.steps), tuple(self.buffers.values()), (), kernels)
        executor = Executor(plan, code, self.memory, n_cores, objects)
        try:
            executor.run({})
        finally:
            executor.close()


def _let_go(checkpoint: Checkpoint, weights: Mapping[str, Weight]) -> None:
    """What was read of the file need not stay in this process's memory."""
    if not hasattr(mmap, "MADV_DONTNEED"):
        return
    names = [n for w in weights.values() if isinstance(w, Matrix) for n in w.tensors]
    mappings = {id(m): m for m in map(_mapping, map(checkpoint.raw, names)) if m is not None}
    for mapping in mappings.values():
        mapping.madvise(mmap.MADV_DONTNEED)


def _mapping(view: Any) -> mmap.mmap | None:
    """The mapped file that an array shows; None where it shows none."""
    while isinstance(view, np.ndarray):
        view = view.base  # pyright: ignore
    whole = view.obj if isinstance(view, memoryview) else view  # pyright: ignore
    return whole if isinstance(whole, mmap.mmap) else None
