"""Which target a model is compiled for, and a layer seen at every stage on its way."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.compiler.models import batch_of, write_tiny

from satchel.base.errors import OptionError
from satchel.compiler.explain import explain
from satchel.compiler.model import host_target, load_model
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.lang.target import TARGETS


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny("llama", tmp_path / "model.gguf", "Q8_0"))


def test_host_target() -> None:
    best = host_target()
    assert best.is_host
    assert host_target(best.name) == best
    with pytest.raises(OptionError, match="no target is called 'x86-mmx'; there are x86-base"):
        host_target("x86-mmx")


@pytest.mark.parametrize("name", [n for n, t in TARGETS.items() if not t.is_host])
def test_targets_of_other_machines_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=f"target {name} can't run here"):
        host_target(name)


def test_a_layer_at_every_stage(checkpoint: Checkpoint) -> None:
    parts = list(explain(checkpoint, layer=1))
    titles = [title for title, _ in parts]
    assert [t.partition(",")[0] for t in titles[:3]] == ["graph", "fused graph", "plan"]
    graph, fused, plan = (text for _, text in parts[:3])
    assert "blk.1.attn_q.weight" in graph
    assert "blk.0." not in graph
    assert "linear" in graph
    assert "product" in fused
    assert "attend" in plan
    kernels = [t for t in titles if t.startswith("kernel ")]
    assert len(kernels) == 4 * len({t.partition(":")[0] for t in kernels})
    assert all(text.strip() for _, text in parts)
    assert any("define" in text for title, text in parts if title.endswith("LLVM"))


def test_layers_that_are_not_there(checkpoint: Checkpoint) -> None:
    for layer in (-1, 2):
        with pytest.raises(
            OptionError, match=f"there is no layer {layer}: the model has layers 0 to 1"
        ):
            list(explain(checkpoint, layer))


@pytest.mark.slow
def test_steps_that_are_too_large(checkpoint: Checkpoint, tmp_path: Path) -> None:
    """An error, and a model that goes on."""
    table = np.zeros((1, 1), np.int32)
    with load_model(checkpoint, context=64, max_batch=8, threads=1, cache=tmp_path) as model:
        want = model.run(batch_of([([1, 2, 3], 0)], table)).copy()
        with pytest.raises(OptionError, match="9 tokens"):
            model.run(batch_of([([1] * 9, 0)], table))
        with pytest.raises(OptionError, match="65 sequences"):
            model.run(batch_of([([1], 0)], np.zeros((65, 1), np.int32)))
        assert np.array_equal(model.run(batch_of([([1, 2, 3], 0)], table)), want)
