"""Nodes, of which graphs are made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
