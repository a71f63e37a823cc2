"""Products of quantized weights read quantized activations: put a `quantize` before them, and into
the norm before that.
"""

# ruff: noqa: ARG001

from __future__ import annotations

from dataclasses import replace

import numpy as np

from satchel.formats.packed import Packed, packed
from satchel.graph import ops
from satchel.graph.graph import Graph, Node, Shape
from satchel.graph.ops import Floats, make, op
from satchel.graph.rewrite import Pattern, Rule, anything, rewrite


def _quantize_shape(x: Shape, digits: int) -> Shape:
    return x


@op(_quantize_shape, dtype="q8")
def quantize(x: Floats, digits: int) -> Floats:
    """The nearest of 255 multiples of a scale, which each 32 neighbours share; with 2 digits, of
    254 times as many.
    """
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    d = np.abs(blocks).max(-1, keepdims=True) / 127 / (254 if digits == 2 else 1)
    return (np.rint(blocks / np.where(d > 0, d, 1)) * d).reshape(x.shape)


def _norm_shape(x: Shape, weight: Shape, eps: float, digits: int) -> Shape:
    return x


@op(_norm_shape, dtype="q8")
def norm_quantize(x: Floats, weight: Floats, eps: float, digits: int) -> Floats:
    """quantize(rms_norm(x), digits)."""
    return quantize.meaning(ops.rms_norm.meaning(x, weight, eps), digits)


def digits_of(product: Node) -> int:
    """The head's inputs get two digits: a third of all error came from there, and reading the
    head's weights hides the cost.
    """
    return 2 if product.shape[0] == "wanted" else 1


def reads_codes(product: Node) -> bool:
    """Whether a product's weights want quantized activations."""
    return isinstance(packed(product.inputs[1].dtype), Packed)


def place_quantize(graph: Graph) -> Graph:
    """The graph with quantized inputs of products. Products of one x share its codes."""
    made: dict[Node, Node] = {}

    def before(inner: Node) -> Node | None:
        x = inner.inputs[0]
        if x.dtype == "q8" or not reads_codes(inner):
            return None
        codes = made.setdefault(x, make("quantize", x, layer=inner.layer, digits=digits_of(inner)))
        return replace(inner, inputs=(codes, *inner.inputs[1:]))

    graph = rewrite(graph, [Rule(Pattern("product", name="inner"), before)])
    norm = Pattern("rms_norm", anything("x"), anything("weight"), name="norm", once=True)

    def into_norm(outer: Node, norm: Node, x: Node, weight: Node) -> Node | None:
        if len(x.shape) != 2:
            return None
        return make(
            "norm_quantize", x, weight, layer=outer.layer, eps=norm["eps"], digits=outer["digits"]
        )

    return rewrite(graph, [Rule(Pattern("quantize", norm, name="outer"), into_norm)])
