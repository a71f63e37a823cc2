"""Tiny models as files, and models run a batch at a time."""

# ruff: noqa: A002 (`format` is our word for it)

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.archs import tiny

from satchel import formats
from satchel.compiler.limits import Limits
from satchel.files.gguf_writer import TensorData, write_gguf
from satchel.runtime.batch import PAGE, Batch, Model

Logits = NDArray[np.float32]
LIMITS = Limits(max_batch=64, context=256, n_pages=8, max_sequences=4)


def write_tiny(case: str, path: Path, format: str = "F32") -> Path:
    """A model of tests/archs/tiny.py, with the matrices that can be in a format in it."""
    fake, block = tiny.checkpoint(case), formats.by_name(format)

    def stored(array: NDArray[np.float32]) -> TensorData | NDArray[np.float32]:
        if array.ndim < 2 or array.shape[1] % block.elements:
            return np.ascontiguousarray(array)
        return TensorData(block, array.shape, block.encode(array))

    metadata = {"general.architecture": fake.arch, **fake.metadata}
    write_gguf(path, metadata, {name: stored(array) for name, array in fake.arrays.items()})
    return path


def batch_of(
    parts: Sequence[tuple[Sequence[int], int]],
    tables: NDArray[np.int32],
    wanted: bool = True,
    groups: int = 1,
) -> Batch:
    """A batch of runs (tokens, first position), run i of sequence i; each of so many cache groups
    has the same tables.
    """
    tokens = np.concatenate([np.array(t, np.int32) for t, _ in parts])
    positions = np.concatenate([np.arange(p, p + len(t), dtype=np.int32) for t, p in parts])
    sequences = np.repeat(np.arange(len(parts), dtype=np.int32), [len(t) for t, _ in parts])
    rows = np.arange(len(tokens) if wanted else 0, dtype=np.int32)
    return Batch(tokens, positions, sequences, (tables,) * groups, rows)


def logits_of(
    model: Model, tokens: Sequence[int], chunks: Sequence[int] = (), pages: Sequence[int] = ()
) -> Logits:
    """The logits of all tokens of a sequence, taken in chunks of these sizes, the rest in 64s."""
    n_pages = -(-len(tokens) // PAGE)
    table = np.array([pages or range(n_pages)], np.int32)
    out: list[Logits] = []
    at, sizes = 0, list(chunks)
    while at < len(tokens):
        n = min(sizes.pop(0) if sizes else 64, len(tokens) - at, 64)
        batch = batch_of([(tokens[at : at + n], at)], table, groups=len(model.groups))
        out.append(model.run(batch).copy())
        at += n
    return np.concatenate(out)
