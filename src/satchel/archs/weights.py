"""The tensors of a checkpoint as forward sees them; what it does not touch is an error."""

from __future__ import annotations

from copy import copy

from satchel.archs.config import Source
from satchel.base.errors import FileFormatError
from satchel.graph.node import Node, weight_node
from satchel.graph.tensor import Tensor


class Weights:
    """`w.attn_q` is attn_q.weight with its bias if it has one, `w.layer(3)` a view of layer 3."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names = frozenset(source.names)
        self._prefix = ""
        self._leaves: dict[str, Node] = {}

    def layer(self, i: int) -> Weights:
        """The same view of one layer's tensors."""
        view = copy(self)
        view._prefix = f"blk.{i}."
        return view

    def __getattr__(self, name: str) -> Weight:
        if name.startswith("_"):
            raise AttributeError(name)
        return Weight(self, name)

    def has(self, name: str) -> bool:
        """Whether the file has the tensor."""
        return self._prefix + name in self._names

    def require(self, *names: str) -> None:
        """Raise FileFormatError if the file lacks one of the tensors."""
        for name in names:
            if not self.has(name):
                needed = f"{self._prefix}{name}, which {self._source.arch} needs"
                raise FileFormatError(f"the file has no tensor {needed}; get the model anew")

    def touch(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The tensor as a leaf. Raises FileFormatError if it is missing or has another shape."""
        self.require(name)
        full = self._prefix + name
        info = self._source.tensor(full)
        if tuple(info.shape) != shape:
            raise FileFormatError(
                f"tensor {full} has shape {list(info.shape)}, not the metadata's {list(shape)}"
            )
        leaf = self._leaves.setdefault(full, weight_node(full, shape, info.format.name))
        return Tensor(leaf)

    def check_all_touched(self) -> None:
        """Raise FileFormatError if the file has a tensor that no one touched."""
        left = [name for name in self._source.names if name not in self._leaves]
        if left:
            more = f" (nor for {len(left) - 1} more)" if len(left) > 1 else ""
            raise FileFormatError(
                f"{self._source.arch} has no use for the file's tensor {left[0]}{more}: "
                "the file is of a variant that is not supported"
            )


class Weight:
    """A weight with its optional bias, not yet touched."""

    def __init__(self, view: Weights, name: str) -> None:
        self._view = view
        self._name = name

    @property
    def exists(self) -> bool:
        """Whether the file has it."""
        return self._view.has(f"{self._name}.weight")

    def weight(self, *shape: int) -> Tensor:
        """The weight, which must have this shape."""
        return self._view.touch(f"{self._name}.weight", shape)

    def bias(self, n: int) -> Tensor | None:
        """The bias, of n elements; None if the file has none."""
        name = f"{self._name}.bias"
        return self._view.touch(name, (n,)) if self._view.has(name) else None
