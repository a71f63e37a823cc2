"""The graph itself: order, readers, and nodes that do not change."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from tests.graph.graphs import POSITIONS, TOKENS, WANTED, graphs

from satchel.graph import Graph, make


@given(graphs())
def test_operands_come_first_and_once(graph: Graph) -> None:
    place = {node: i for i, node in enumerate(graph.nodes)}
    assert len(place) == len(graph.nodes)
    for node in graph.nodes:
        assert all(place[operand] < place[node] for operand in node.inputs)
    assert sum(map(len, graph.readers.values())) == sum(len(node.inputs) for node in graph.nodes)


def test_a_deep_graph_needs_no_deep_stack() -> None:
    x = TOKENS
    for _ in range(20_000):
        x = make("silu", x)
    assert len(Graph((TOKENS,), (x,)).nodes) == 20_001


def test_a_shared_node_is_computed_once_but_read_twice() -> None:
    x = make("silu", TOKENS)
    graph = Graph((TOKENS, POSITIONS, WANTED), (make("mul", x, x),))
    assert [node.op for node in graph.nodes] == ["input", "silu", "mul"]
    assert len(graph.readers[x]) == 2


def test_nodes_do_not_change() -> None:
    node: Any = make("scale", TOKENS, by=2.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.op = "silu"
    with pytest.raises(TypeError):
        node.attrs["by"] = 3.0
    assert repr(node) == "<scale f32['tokens']>"
