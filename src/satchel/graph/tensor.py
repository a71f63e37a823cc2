"""Symbolic tensors: an arch's forward runs on them once, and what it does becomes nodes."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass

from satchel.graph.node import Attr, Node, Shape
from satchel.graph.ops import make
from satchel.graph.rope import Scaling

_layer: ContextVar[int | None] = ContextVar("layer", default=None)


@contextmanager
def in_layer(i: int) -> Generator[None, None, None]:
    """What is traced inside belongs to layer `i`."""
    before = _layer.set(i)
    try:
        yield
    finally:
        _layer.reset(before)


@dataclass(frozen=True, eq=False)
class Tensor:
    """A node that can be computed with."""

    node: Node

    @property
    def shape(self) -> Shape:
        return self.node.shape

    @property
    def width(self) -> int:
        """The length of the last axis."""
        return int(self.shape[-1])

    def __add__(self, other: Tensor) -> Tensor:
        return apply("add", self, other)

    def __mul__(self, other: Tensor | float) -> Tensor:
        if isinstance(other, Tensor):
            return apply("mul", self, other)
        return apply("scale", self, by=float(other))

    def split_heads(self, n: int) -> Tensor:
        """[tokens, n * head_dim] -> [tokens, n, head_dim]."""
        return apply("split_heads", self, n=n)

    def join_heads(self) -> Tensor:
        """[tokens, n, head_dim] -> [tokens, n * head_dim]."""
        return apply("join_heads", self)


def apply(op: str, *operands: Tensor | None, **attrs: Attr) -> Tensor:
    """One op of the table; a None at the end is an operand left out."""
    nodes = (operand.node for operand in operands if operand is not None)
    return Tensor(make(op, *nodes, layer=_layer.get(), **attrs))


def embed(table: Tensor, tokens: Tensor) -> Tensor:
    """The table's rows at `tokens`."""
    return apply("embed", table, tokens)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x @ weight.T + bias; weight is [out, in]."""
    return apply("linear", x, weight, bias)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x * x) + eps) * weight, over the last axis."""
    return apply("rms_norm", x, weight, eps=eps)


def rope(
    x: Tensor,
    positions: Tensor,
    factors: Tensor | None = None,
    *,
    theta: float,
    dims: int,
    pairs: str,
    scaling: Scaling | None = None,
) -> Tensor:
    """Turn each head's pairs with the position; see ops.rope."""
    stretch = asdict(scaling) if scaling and scaling != Scaling() else {}
    return apply("rope", x, positions, factors, theta=theta, dims=dims, pairs=pairs, **stretch)


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor,
    *,
    cache: int,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
) -> Tensor:
    """Each token's mix of the values that it may see; see ops.attention."""
    return apply(
        "attention", q, k, v, positions, cache=cache, scale=scale, window=window, softcap=softcap
    )


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)."""
    return apply("silu", x)


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GELU."""
    return apply("gelu", x)


def softcap(x: Tensor, cap: float) -> Tensor:
    """cap * tanh(x / cap)."""
    return apply("softcap", x, cap=cap)


def pick(x: Tensor, wanted: Tensor) -> Tensor:
    """The rows of x at `wanted`."""
    return apply("pick", x, wanted)
