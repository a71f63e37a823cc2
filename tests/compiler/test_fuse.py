"""What the passes make of a graph, and what they leave alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.archs import tiny
from tests.compiler.models import LIMITS

from satchel.archs import trace
from satchel.base.errors import SatchelError
from satchel.compiler.model import host_target
from satchel.compiler.pipeline import compile_graph, fuse
from satchel.compiler.place_quantize import quantize
from satchel.graph import Graph
from satchel.graph.node import Node


def count(graph: Graph) -> Counter[str]:
    return Counter(node.op for node in graph.nodes if not node.is_leaf)


def stored_as(graph: Graph, format: str) -> Graph:  # noqa: A002
    """The graph, its matrices in a format that its rows may not even fill."""
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        matrix = node.op == "weight" and len(node.shape) == 2
        inputs = tuple(new[i] for i in node.inputs)
        new[node] = replace(node, inputs=inputs, dtype=format if matrix else node.dtype)
    return Graph(tuple(new.get(i, i) for i in graph.inputs), tuple(new[o] for o in graph.outputs))


def test_a_llama_layer_is_seven_steps() -> None:
    found = count(fuse(stored_as(trace(tiny.checkpoint("llama")), "Q8_0")))
    n_layers = 2
    assert found["norm_quantize"] == 2 * n_layers + 1  # before q/k/v, before gate/up; the head
    assert found["quantize"] == 2 * n_layers  # before attn_output and ffn_down
    assert found["product"] == 4 * n_layers + 1
    assert found["rope_store"] == found["attend"] == n_layers
    assert not {"add", "mul", "silu", "linear", "rms_norm", "rope"} & found.keys()


def test_plain_weights_want_plain_activations() -> None:
    found = count(fuse(trace(tiny.checkpoint("llama"))))
    assert not {"quantize", "norm_quantize"} & found.keys()


def test_fusing_twice_changes_nothing() -> None:
    for case in ("llama", "gemma3"):
        once = fuse(stored_as(trace(tiny.checkpoint(case)), "Q8_0"))
        assert fuse(once) == once


def test_fused_graphs_read_back() -> None:
    for case in tiny.MODELS:
        graph = fuse(stored_as(trace(tiny.checkpoint(case)), "Q8_0"))
        assert Graph.parse(str(graph)) == graph


def test_the_head_reads_two_digits() -> None:
    graph = fuse(stored_as(trace(tiny.checkpoint("llama")), "Q8_0"))
    digits = [node["digits"] for node in graph.nodes if "digits" in node.attrs]
    assert digits[-1] == 2
    assert set(digits[:-1]) == {1}


def test_quantize_says_what_codes_say() -> None:
    """The op's meaning: within half a step of x, and idempotent."""
    x = np.random.default_rng(0).standard_normal((3, 96))
    for digits, step in ((1, 127), (2, 127 * 254)):
        got = quantize.meaning(x, digits)
        most = np.abs(x.reshape(3, 3, 32)).max(-1, keepdims=True) / step / 2
        assert np.all(np.abs(got - x).reshape(3, 3, 32) <= most + 1e-12)
        np.testing.assert_allclose(quantize.meaning(got, digits), got, atol=1e-12)


@pytest.mark.parametrize("change", ["theta", "eps", "norm"])
def test_heads_that_differ_are_not_fused(change: str) -> None:
    """q and k turned or normed apart have no kernel: an error that names the op."""
    graph = trace(tiny.checkpoint("qwen3"))
    new: dict[Node, Node] = {}
    for node in graph.nodes:
        inputs, attrs = tuple(new[i] for i in node.inputs), dict(node.attrs)
        is_k = len(node.shape) == 3 and node.shape[1] == 2
        if is_k and change in attrs:
            attrs[change] = float(str(attrs[change])) * 2
        if is_k and change == "norm" and node.op == "rms_norm":
            new[node] = inputs[0]  # k without its norm
            continue
        new[node] = replace(node, inputs=inputs, attrs=attrs)
    odd = Graph(tuple(new.get(i, i) for i in graph.inputs), tuple(new[o] for o in graph.outputs))
    assert "attention" in count(fuse(odd))
    with pytest.raises(SatchelError, match="no kernel for <rope"):
        compile_graph(odd, host_target(), LIMITS)


def test_a_format_without_kernels_is_named() -> None:
    graph = stored_as(trace(tiny.checkpoint("llama")), "IQ2_XS")
    with pytest.raises(SatchelError, match="IQ2_XS"):
        compile_graph(graph, host_target(), LIMITS)
