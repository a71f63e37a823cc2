"""The reference evaluation: by rows or whole, in any float type, with memory given back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.graph.graphs import TOKENS, VOCAB, WANTED, graphs

from satchel.graph import Graph, evaluate, make, reference, weight_node

Array = NDArray[Any]


class Source:
    """Random weights by name."""

    def __init__(self, graph: Graph) -> None:
        rng = np.random.default_rng(7)
        self.arrays: dict[str, Array] = {
            name: rng.standard_normal([int(n) for n in node.shape]).astype(np.float32)
            for name, node in graph.weights.items()
        }

    def __call__(self, name: str, /) -> Array:
        return self.arrays[name]


class ByRows(Source):
    """The same, by rows, with a note of how many were taken at a time."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.taken: list[tuple[str, int]] = []

    def rows(self, name: str, rows: NDArray[np.integer[Any]]) -> Array:
        self.taken.append((name, len(rows)))
        return self.arrays[name][rows]


ids = st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=6)


@given(graphs(), ids)
def test_rows_and_whole_weights_agree(graph: Graph, tokens: list[int]) -> None:
    with np.errstate(all="ignore"):
        whole = evaluate(graph, Source(graph), tokens)
        by_rows = evaluate(graph, ByRows(graph), tokens)
    np.testing.assert_allclose(by_rows, whole, rtol=1e-9, atol=1e-9 * (1 + np.abs(whole).max()))


@given(graphs(), ids, st.data())
def test_a_token_sees_only_those_before_it(
    graph: Graph, tokens: list[int], data: st.DataObject
) -> None:
    n = data.draw(st.integers(1, len(tokens)))
    with np.errstate(all="ignore"):
        whole = evaluate(graph, Source(graph), tokens)
        start = evaluate(graph, Source(graph), tokens[:n])
        last = evaluate(graph, Source(graph), tokens, wanted=[n - 1])
    tolerance = 1e-9 * (1 + np.abs(whole).max())
    np.testing.assert_allclose(start, whole[:n], rtol=1e-9, atol=tolerance)
    np.testing.assert_allclose(last, whole[n - 1 : n], rtol=1e-9, atol=tolerance)


def head_only() -> Graph:
    table = weight_node("table", (VOCAB, 4), "F32")
    x = make("pick", make("embed", table, TOKENS), WANTED)
    return Graph((TOKENS, WANTED), (make("linear", x, table),))


def test_only_the_rows_needed_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", 5)
    source = ByRows(head_only())
    logits = evaluate(head_only(), source, [3, 3, 9])
    assert source.taken == [("table", 2), ("table", 5), ("table", 5), ("table", 2)]
    table = source.arrays["table"].astype(np.float64)
    np.testing.assert_allclose(logits, table[[3, 3, 9]] @ table.T)


def test_the_type_asked_for_is_computed_in() -> None:
    source = Source(head_only())
    assert evaluate(head_only(), source, [1]).dtype == np.float64
    assert evaluate(head_only(), source, [1], np.float32).dtype == np.float32
