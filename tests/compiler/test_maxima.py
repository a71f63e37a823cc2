"""A plan's last steps: the maxima of the logits that the same run gave, and the greatest."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.archs import tiny
from tests.compiler.models import batch_of, write_tiny
from tests.measure.tiny import write_tiny as write_wider

from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.runtime.batch import RANKED, STRIP


def check(model: CompiledModel, tokens: list[int]) -> None:
    """Of one row and of many; what is past the vocabulary does not count."""
    for n in (1, len(tokens), 1):
        table = np.array([[0]], np.int32)
        logits = model.run(batch_of([(tokens[:n], 0)], table, groups=len(model.groups)))
        want = np.maximum.reduceat(logits, range(0, model.vocab_size, STRIP), axis=1)
        assert logits.shape == (n, model.vocab_size)
        np.testing.assert_array_equal(model.maxima[:n], want)
        assert np.isfinite(want).all()
        ranked, greatest = (array[:n] for array in model.ranked)
        if want.shape[1] < RANKED:
            assert (ranked[:, 0] == -1).all()
        else:
            np.testing.assert_array_equal(ranked, np.argsort(-logits, kind="stable")[:, :RANKED])
            np.testing.assert_array_equal(greatest, np.take_along_axis(logits, ranked, axis=1))


@pytest.mark.parametrize("case", ["llama", "gemma3"])
def test_a_vocabulary_shorter_than_a_strip(case: str, tmp_path: Path, cache: Path) -> None:
    file = open_checkpoint(write_tiny(case, tmp_path / "m.gguf"))
    with load_model(file, context=64, threads=2, cache=cache) as model:
        check(model, tiny.tokens(case))


@pytest.mark.slow
def test_several_strips(tmp_path: Path, cache: Path) -> None:
    file = open_checkpoint(write_wider(tmp_path / "m.gguf"))
    with load_model(file, context=64, threads=2, cache=cache) as model:
        assert model.vocab_size > STRIP
        check(model, list(range(9)))


def test_the_ranks_of_a_real_model(smollm2: Path) -> None:
    with load_model(open_checkpoint(smollm2), context=64, threads=2) as model:
        check(model, [1, 2, 3, 4, 5])
        assert model.ranked[0][0, 0] >= 0
