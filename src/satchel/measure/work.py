"""What one token costs by the graph: bytes of weights to read, multiply-adds to do."""

from __future__ import annotations

import math
from dataclasses import dataclass

from satchel import formats
from satchel.graph.graph import Graph, Node


@dataclass(frozen=True)
class Work:
    """Of one token, attention left out: its share grows with the context, and is small at first.

    `head_mads` are those of the logits, which a prompt needs for its last token only.
    """

    weight_bytes: int
    mads: int
    head_mads: int


def work_of(graph: Graph) -> Work:
    """The work of a graph's linear ops, weights as the file stores them."""
    weights = {w.name: w for node in graph.find("linear") for w in node.inputs[1:2]}
    head = [n.inputs[1] for n in graph.find("linear") if n.shape[0] == "wanted"]
    return Work(
        weight_bytes=sum(map(_bytes, weights.values())),
        mads=sum(map(_elements, weights.values())),
        head_mads=sum(map(_elements, head)),
    )


def _elements(weight: Node) -> int:
    return math.prod(int(dim) for dim in weight.shape)


def _bytes(weight: Node) -> int:
    row = int(weight.shape[-1])
    return _elements(weight) // row * formats.by_name(weight.dtype).row_bytes(row)
