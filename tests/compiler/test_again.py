"""A run that is the last one again, a position further, is the same as one that is given anew."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.compiler.models import batch_of, write_tiny

from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.kernels.groups import SEGMENT
from satchel.runtime.batch import PAGE

PROMPTS = 2 * SEGMENT * PAGE - 5, 7  # the first goes on past a segment's end
STEPS = 12


def decoded(model: CompiledModel, *, anew: bool) -> NDArray[np.float32]:
    """The logits of steps of two sequences, a token of each: [STEPS, 2, vocab]."""
    n_pages = -(-(max(PROMPTS) + STEPS) // PAGE)
    table = np.arange(2 * n_pages, dtype=np.int32).reshape(2, n_pages)
    for row, n in enumerate(PROMPTS):
        for at in range(0, n, 512):
            tokens = [3 + i % 50 for i in range(at, min(n, at + 512))]
            model.run(batch_of([(tokens, at)], table[row : row + 1], False, len(model.groups)))
    first = batch_of([([5], n) for n in PROMPTS], table, groups=len(model.groups))
    out: list[NDArray[np.float32]] = []
    logits, n_again = np.empty(0, np.float32), 0
    for i in range(STEPS):
        tokens = np.array([4 + i % 40, 9 + i % 30], np.int32)
        positions = first.positions + np.int32(i)
        if anew or not i or not np.all(positions % PAGE):
            logits = model.run(replace(first, tokens=tokens, positions=positions))
        else:
            model.run_again(tokens.tolist())
            n_again += 1
        out.append(logits.copy())
        ids, greatest = model.ranked
        if ids[0, 0] >= 0:
            np.testing.assert_array_equal(greatest[:2, 0], logits.max(axis=1))
        np.testing.assert_array_equal(model.maxima[:2].max(axis=1), logits.max(axis=1))
    assert n_again == (0 if anew else STEPS - 2)
    return np.array(out)


@pytest.mark.parametrize("case", ["llama", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_a_run_again_is_a_run(case: str, tmp_path: Path, cache: Path) -> None:
    file = open_checkpoint(write_tiny(case, tmp_path / "m.gguf"))
    with load_model(file, context=1152, threads=2, n_pages=40, cache=cache) as model:
        once = decoded(model, anew=False)
        again = decoded(model, anew=True)
    np.testing.assert_array_equal(once, again)
    assert np.isfinite(once).all()
