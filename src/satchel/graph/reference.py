"""The reference: a graph's meaning on one sequence, op by op in numpy."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from satchel.graph.graph import Graph
from satchel.graph.node import Node
from satchel.graph.ops import OPS

ROWS_AT_ONCE = 16384
"""How many rows of a large weight are decoded at a time, where the source offers rows."""


class Weights(Protocol):
    """Gives a weight by name, decoded to float32, in its graph shape."""

    def __call__(self, name: str, /) -> NDArray[np.float32]: ...


@runtime_checkable
class WeightsByRows(Protocol):
    """A source that can also decode some rows only (float32 [len(rows), row length])."""

    def rows(self, name: str, rows: NDArray[np.integer]) -> NDArray[np.float32]: ...


def evaluate(
    graph: Graph,
    weights: Weights,
    tokens: ArrayLike,
    dtype: DTypeLike = np.float64,
    wanted: ArrayLike | None = None,
) -> NDArray[Any]:
    """The graph's first output for one sequence that starts at position 0.

    tokens: [n] ids; wanted: indices into them (default: all). All is computed in `dtype`, also the
    logits [wanted, vocab] that it gives. A value is freed after its last reader.
    """
    ids = np.asarray(tokens, np.int64)
    every = np.arange(len(ids))
    given = {"tokens": ids, "positions": every}
    given["wanted"] = every if wanted is None else np.asarray(wanted, np.int64)
    values: dict[Node, NDArray[Any]] = {node: given[node.name] for node in graph.inputs}
    left = {node: len(readers) for node, readers in graph.readers.items()}
    for node in graph.nodes:
        if node.is_leaf:
            continue
        values[node] = _value(node, values, weights, np.dtype(dtype))
        for operand in node.inputs:
            left[operand] -= 1
            if left[operand] == 0 and operand not in graph.outputs:
                values.pop(operand, None)
    return values[graph.outputs[0]]


def _value(
    node: Node, values: dict[Node, NDArray[Any]], weights: Weights, dtype: np.dtype[Any]
) -> NDArray[Any]:
    by_rows = weights if isinstance(weights, WeightsByRows) else None
    if node.op == "embed" and by_rows is not None:
        table, tokens = node.inputs
        used, where = np.unique(values[tokens], return_inverse=True)
        return by_rows.rows(table.name, used).astype(dtype)[where]
    if node.op == "linear" and by_rows is not None and len(node.inputs) == 2:
        x, weight = node.inputs
        return _linear_by_rows(values[x], weight, by_rows, dtype)

    def operand(source: Node) -> NDArray[Any]:
        return weights(source.name).astype(dtype) if source.op == "weight" else values[source]

    return OPS[node.op].meaning(*map(operand, node.inputs), **node.attrs)


def _linear_by_rows(
    x: NDArray[Any], weight: Node, by_rows: WeightsByRows, dtype: np.dtype[Any]
) -> NDArray[Any]:
    """linear, a slice of the weight at a time: a head of 262,144 rows is 1.3 GB in float64."""
    n_rows = int(weight.shape[0])
    y = np.empty((*x.shape[:-1], n_rows), dtype)
    for start in range(0, n_rows, ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, n_rows))
        y[..., rows] = OPS["linear"].meaning(x, by_rows.rows(weight.name, rows).astype(dtype))
    return y
