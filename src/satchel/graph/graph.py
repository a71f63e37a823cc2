"""The graph: what is computed, as immutable data. archs/ makes it, compiler/ lowers it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from satchel.base.errors import FileFormatError

Dim = int | str
"""A length: a number, or a symbol that each run gives anew ("tokens", "wanted")."""
Shape = tuple[Dim, ...]
Attr = int | float | str | bool | None | tuple["Attr", ...]


class ShapeError(FileFormatError):
    """Operands that do not fit together."""


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """One op applied to nodes. A node is equal only to itself, so a graph is a DAG of shared nodes.

    Leaves are "input" (given at each run) and "weight" (of the model file), both with a `name`.
    `dtype` names a scalar type ("f32") or, for weights, a block format ("Q4_1"). Shapes of weights
    are numpy's: rows first, the length of a row last. `layer` is the layer the node belongs to.
    """

    op: str
    inputs: tuple[Node, ...]
    shape: Shape
    dtype: str
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr])
    layer: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    @property
    def name(self) -> str:
        """The name of a leaf."""
        return str(self.attrs["name"])

    @property
    def is_leaf(self) -> bool:
        return self.op in ("input", "weight")

    def __getitem__(self, attr: str) -> Attr:
        return self.attrs[attr]

    def __repr__(self) -> str:
        return f"<{self.name if self.is_leaf else self.op} {self.dtype}{list(self.shape)}>"


def input_node(name: str, shape: Shape, dtype: str) -> Node:
    """A leaf that each run gives anew."""
    return Node("input", (), shape, dtype, {"name": name})


def weight_node(name: str, shape: Shape, dtype: str) -> Node:
    """A leaf that is a tensor of the model file; `dtype` is its format's name."""
    return Node("weight", (), shape, dtype, {"name": name})


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
        from satchel.graph.text import print_graph

        return print_graph(self, layer)

    @staticmethod
    def parse(text: str) -> Graph:
        """Read a text form. Raises FileFormatError, with the line, if it is none."""
        from satchel.graph.text import parse_graph

        return parse_graph(text)

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
