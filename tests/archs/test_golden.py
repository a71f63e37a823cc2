"""Each architecture's graph gives the logits that transformers gives, on tiny random models."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.archs import tiny

from satchel.archs import architectures, trace
from satchel.graph import Graph, evaluate

GOLDEN = Path(__file__).parent / "golden"


def golden(case: str) -> np.ndarray:
    return np.array(json.loads((GOLDEN / f"{case}.json").read_text(encoding="utf-8"))["logits"])


@pytest.mark.parametrize("case", tiny.MODELS)
def test_logits_are_those_of_transformers(case: str) -> None:
    fake = tiny.checkpoint(case)
    ours = evaluate(trace(fake), fake, tiny.tokens(case))
    np.testing.assert_allclose(
        ours, golden(case), rtol=0, atol=2e-5
    )  # transformers turns and norms in float32


def test_every_architecture_has_a_golden_model() -> None:
    assert {tiny.arch_of(case) for case in tiny.MODELS} == set(architectures())


def test_the_cases_tell_the_features_apart() -> None:
    """A case without its feature gives other logits, so that the golden files can fail."""
    for case, key, other in (
        ("llama-linear", "rope.scaling.factor", 1.0),
        ("llama-yarn", "rope.scaling.type", "linear"),
        ("llama-yarn", "rope.scaling.yarn_beta_fast", 2.0),
        ("llama-yarn", "rope.scaling.yarn_beta_slow", 2.0),
        ("llama-yarn", "rope.scaling.original_context_length", 128),
        ("qwen2-yarn", "rope.scaling.attn_factor", 1.0),
        ("mistral", "attention.sliding_window", 6),
        ("gemma3", "attention.sliding_window", 7),
        ("gemma3", "attention.sliding_window_pattern", 7),
        ("gemma3", "rope.freq_base_swa", 101.0),
        ("gemma3-capped", "final_logit_softcapping", 2.5),
        ("gemma3-capped", "rope.scaling.factor", 3.0),
    ):
        fake = tiny.checkpoint(case)
        fake.metadata[f"{fake.arch}.{key}"] = other
        ours = evaluate(trace(fake), fake, tiny.tokens(case))
        assert np.abs(ours - golden(case)).max() > 2e-4, (case, key)


@pytest.mark.parametrize("case", tiny.MODELS)
def test_the_graph_reads_back(case: str) -> None:
    graph = trace(tiny.checkpoint(case))
    assert Graph.parse(str(graph)) == graph


def test_logits_of_wanted_rows_alone_are_the_same() -> None:
    fake = tiny.checkpoint("gemma3")
    graph, ids = trace(fake), tiny.tokens("gemma3")
    every = evaluate(graph, fake, ids)
    np.testing.assert_allclose(evaluate(graph, fake, ids, wanted=[3, -1]), every[[3, -1]], 1e-12)
