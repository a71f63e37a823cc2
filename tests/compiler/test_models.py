"""Tiny models of every architecture, compiled and run, against the reference in float64."""

# ruff: noqa: A002 (`format` is our word for it)

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.archs import tiny
from tests.compiler.models import batch_of, logits_of, write_tiny

from satchel.archs import trace
from satchel.compiler import fuse_small
from satchel.compiler.model import host_target, load_model
from satchel.compiler.pipeline import fuse
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.graph import ops
from satchel.graph.reference import evaluate
from satchel.lang.target import TARGETS
from satchel.measure.accuracy import Decoded, reference_logits

HOST = [t.name for t in TARGETS.values() if t.is_host and t.features <= host_target().features]


@pytest.fixture
def halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference sees keys and values as pages keep them."""

    def kept(x: Any) -> Any:
        return x.astype(np.float16).astype(x.dtype)

    def attention(q: Any, k: Any, v: Any, positions: Any, **attrs: Any) -> Any:
        return ops.attention.meaning(q, kept(k), kept(v), positions, **attrs)

    def attend(stored: Any, positions: Any, **attrs: Any) -> Any:
        q, k, v = stored
        return fuse_small.attend.meaning((q, kept(k), kept(v)), positions, **attrs)

    for name, meaning in (("attention", attention), ("attend", attend)):
        monkeypatch.setitem(ops.OPS, name, replace(ops.OPS[name], meaning=meaning))


def tiny_model(case: str, folder: Path, format: str) -> Checkpoint:
    return open_checkpoint(write_tiny(case, folder / "model.gguf", format))


@pytest.mark.parametrize("case", tiny.MODELS)
def test_fusion_changes_no_meaning(case: str) -> None:
    """Plain weights are multiplied as they are: the fused graph computes the same numbers."""
    fake = tiny.checkpoint(case)
    graph, ids = trace(fake), tiny.tokens(case)
    fused = fuse(graph)
    assert not {"linear", "attention", "rope"} & {node.op for node in fused.nodes}
    np.testing.assert_allclose(
        evaluate(fused, fake, ids), evaluate(graph, fake, ids), rtol=0, atol=1e-12
    )


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("case", tiny.MODELS)
def test_plain_weights(case: str, format: str, tmp_path: Path, cache: Path) -> None:
    """As near as float32 is, but where a key falls on the other side of a half's rounding."""
    checkpoint = tiny_model(case, tmp_path, format)
    with load_model(checkpoint, context=128, threads=2, cache=cache) as model:
        ours = logits_of(model, tiny.tokens(case))
    error = np.abs(ours - reference_logits(checkpoint, tiny.tokens(case)))
    assert np.median(error) < 1e-4
    assert error.max() < 5e-3


@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("format", ["Q8_0", "Q4_0"])
@pytest.mark.parametrize("case", tiny.MODELS)
def test_quantized_weights(case: str, format: str, tmp_path: Path, cache: Path) -> None:
    """Near the fused graph's meaning, where activations are quantized too, but for codes that
    rounding takes to a neighbour; not all of a tiny model's rows are whole blocks, so that formats
    are mixed.
    """
    checkpoint = tiny_model(case, tmp_path, format)
    with load_model(checkpoint, context=128, threads=2, cache=cache) as model:
        ours = logits_of(model, tiny.tokens(case))
    want = evaluate(fuse(trace(checkpoint)), Decoded(checkpoint), tiny.tokens(case))
    error = np.abs(ours - want)
    assert np.median(error) < 2e-2
    assert np.median(error) < 0.3 * np.median(
        np.abs(want - reference_logits(checkpoint, tiny.tokens(case)))
    )


@pytest.mark.slow
@pytest.mark.usefixtures("halves")
@pytest.mark.parametrize("target", HOST[:-1])
@pytest.mark.parametrize("case", ["llama-biased", "gemma3"])
def test_other_targets(case: str, target: str, tmp_path: Path, cache: Path) -> None:
    checkpoint = tiny_model(case, tmp_path, "F32")
    with load_model(checkpoint, context=128, threads=1, target=target, cache=cache) as model:
        assert model.target.name == target
        ours = logits_of(model, tiny.tokens(case))
    error = np.abs(ours - reference_logits(checkpoint, tiny.tokens(case)))
    assert np.median(error) < 1e-4
    assert error.max() < 5e-3


@pytest.mark.parametrize("format", ["F32", "Q8_0"])
@pytest.mark.parametrize("case", tiny.MODELS)
def test_one_token_at_a_time(case: str, format: str, tmp_path: Path, cache: Path) -> None:
    """The same bits, on any number of threads and any pages."""
    checkpoint, ids = tiny_model(case, tmp_path, format), tiny.tokens(case) * 3
    with load_model(checkpoint, context=128, threads=1, cache=cache) as model:
        want = logits_of(model, ids)
    with load_model(checkpoint, context=128, threads=3, cache=cache) as model:
        assert np.array_equal(logits_of(model, ids, chunks=[1] * 96, pages=[3, 1]), want)


def test_wanted_rows_alone(tmp_path: Path, cache: Path) -> None:
    ids = tiny.tokens("qwen2")
    with load_model(tiny_model("qwen2", tmp_path, "Q8_0"), context=64, cache=cache) as model:
        want = logits_of(model, ids)
        batch = batch_of([(ids, 0)], np.zeros((1, 1), np.int32))
        for wanted in ([], [31], [0, 7, 8]):
            got = model.run(replace(batch, wanted=np.array(wanted, np.int32)))
            assert np.array_equal(got, want[wanted])
