"""The states that the head reads, beside the logits and without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.archs import tiny
from tests.compiler.models import batch_of, logits_of, write_tiny

from satchel.archs import trace
from satchel.base.errors import UnsupportedError
from satchel.compiler.expose_states import expose_states, states_of
from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.graph import evaluate
from satchel.graph.graph import Graph
from satchel.measure.accuracy import Decoded

TABLE = np.array([[1, 0]], np.int32)


def states(model: CompiledModel, ids: Sequence[int], *sizes: int) -> NDArray[np.float32]:
    """The states of all tokens, computed in chunks of these sizes, without any logits."""
    found: list[NDArray[np.float32]] = []
    at = 0
    for n in sizes:
        batch = batch_of([(ids[at : at + n], at)], TABLE, False, len(model.groups))
        assert model.run(replace(batch, embedded=np.arange(n, dtype=np.int32))).size == 0
        found.append(model.states[:n].copy())
        at += n
    return np.concatenate(found)


def reference_states(path: Path, ids: Sequence[int]) -> NDArray[np.float64]:
    checkpoint = open_checkpoint(path)
    graph = trace(checkpoint)
    return evaluate(Graph(graph.inputs, (states_of(graph),)), Decoded(checkpoint), ids)


@pytest.mark.parametrize("case", tiny.MODELS)
def test_states_are_what_the_graph_says(case: str, tmp_path: Path, cache: Path) -> None:
    path, ids = write_tiny(case, tmp_path / "model.gguf"), tiny.tokens(case)
    want = reference_states(path, ids)
    with load_model(open_checkpoint(path), context=128, threads=2, cache=cache) as model:
        got = states(model, ids, len(ids))
    assert got.shape == want.shape
    error = np.abs(got - want) / np.abs(want).max()
    assert np.median(error) < 5e-4  # keys and values are halves in the cache
    assert error.max() < 1e-2


def test_states_are_the_same_in_any_batch(tmp_path: Path, cache: Path) -> None:
    path, ids = write_tiny("gemma3", tmp_path / "model.gguf", "Q8_0"), tiny.tokens("gemma3")
    n = len(ids)
    with load_model(open_checkpoint(path), context=128, threads=2, cache=cache) as model:
        whole = states(model, ids, n)
        assert np.array_equal(states(model, ids, *[1] * n), whole)
        assert np.array_equal(states(model, ids, 5, n - 5), whole)
        logits = logits_of(model, ids)
        rows = np.array([3, n - 1], np.int32)
        batch = batch_of([(ids, 0)], TABLE, groups=len(model.groups))
        both = replace(batch, wanted=rows, embedded=rows[1:])
        assert np.array_equal(model.run(both), logits[rows])
        assert np.array_equal(model.states[:1], whole[rows[1:]])


def test_who_wants_no_states_computes_none(tmp_path: Path, cache: Path) -> None:
    path, ids = write_tiny("llama", tmp_path / "model.gguf"), tiny.tokens("llama")
    with load_model(open_checkpoint(path), context=128, threads=1, cache=cache) as model:
        model.states[:] = np.nan
        model.run(batch_of([(ids, 0)], TABLE))
        assert np.isnan(model.states).all()


def test_a_graph_without_a_head_has_no_states() -> None:
    graph = trace(tiny.checkpoint("llama"))
    with pytest.raises(UnsupportedError, match="0"):
        expose_states(Graph(graph.inputs, (states_of(graph),)))
