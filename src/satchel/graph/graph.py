"""The graph: what is computed, as immutable data. archs/ makes it, compiler/ lowers it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from satchel.graph.node import Attr, Dim, Node, Shape, ShapeError, input_node, weight_node
from satchel.graph.text import parse_graph, print_graph

__all__ = ["Attr", "Dim", "Graph", "Node", "Shape", "ShapeError", "input_node", "weight_node"]


@dataclass(frozen=True, eq=False)
class Graph:
    """What a model computes, from `inputs` and weights to `outputs`. Equal if the text is equal."""

    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """All that the outputs need, leaves too, operands first. The order is the DAG's alone."""
        return tuple(_postorder(self.outputs))

    @cached_property
    def weights(self) -> dict[str, Node]:
        """The weights by name, in order of first use."""
        return {node.name: node for node in self.nodes if node.op == "weight"}

    @cached_property
    def readers(self) -> dict[Node, tuple[Node, ...]]:
        """Who reads a node: one entry for each operand, so `mul(x, x)` counts twice."""
        found: dict[Node, list[Node]] = {node: [] for node in self.nodes}
        for node in self.nodes:
            for operand in node.inputs:
                found[operand].append(node)
        return {node: tuple(readers) for node, readers in found.items()}

    def find(self, op: str) -> tuple[Node, ...]:
        """The nodes of one op, in order."""
        return tuple(node for node in self.nodes if node.op == op)

    def text(self, layer: int | None = None) -> str:
        """The text form, which `parse` reads back; with `layer`, only that layer's lines."""
        return print_graph(self.inputs, self.nodes, self.outputs, layer)

    @staticmethod
    def parse(text: str) -> Graph:
        """Read a text form. Raises FileFormatError, with the line, if it is none."""
        return Graph(*parse_graph(text))

    def __str__(self) -> str:
        return self.text()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and self.text() == other.text()

    def __hash__(self) -> int:
        return hash(self.text())


def _postorder(outputs: tuple[Node, ...]) -> Iterator[Node]:
    """Operands first, left to right. A stack of our own: models are deeper than Python's."""
    done: set[Node] = set()
    stack = [(node, False) for node in reversed(outputs)]
    while stack:
        node, ready = stack.pop()
        if node in done:
            continue
        if ready:
            done.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((operand, False) for operand in reversed(node.inputs))
