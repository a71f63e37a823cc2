"""Matrix products: each linear becomes a `product`, which then takes in the work around it.

- `gate(x Wg) * (x Wu)`, a gated feed-forward, is one product over both matrices; - `r + product`
adds r at the product's end; - products of one x (q, k and v) are one product over the rows of
all, of which each reader takes its `columns`.
"""

# ruff: noqa: ARG001 (a shape rule names all attrs of its op)

from __future__ import annotations

from dataclasses import replace
from typing import Any

from satchel.formats.packed import ROWS
from satchel.graph import ops
from satchel.graph.graph import Graph, Node, Shape
from satchel.graph.ops import Floats, fit, make, op
from satchel.graph.rewrite import Pattern, Rule, anything, rewrite

GATES = ("silu", "gelu")


def _product_shape(
    x: Shape, *others: Shape, n: int, gate: str, biased: bool, residual: bool
) -> Shape:
    weights = others[:n]
    fit(all(w[1] == x[-1] for w in weights), "product needs rows as long as x's", x, *weights)
    fit(len(others) == n * (1 + biased) + residual, "product's operands don't add up", x, *others)
    return (*x[:-1], int(weights[0][0]) if gate else sum(int(w[0]) for w in weights))


@op(_product_shape)
def product(x: Floats, *others: Any, n: int, gate: str, biased: bool, residual: bool) -> Floats:
    """x times each of n weights, side by side, plus their biases, plus a residual; or gate(x Wg) *
    (x Wu).
    """
    rows = [x @ w.T for w in others[:n]]
    if biased:
        rows = [y + b for y, b in zip(rows, others[n : 2 * n], strict=True)]
    import numpy as np

    y = ops.OPS[gate].meaning(rows[0]) * rows[1] if gate else np.concatenate(rows, axis=-1)
    return y + others[-1] if residual else y


def _columns_shape(x: Shape, at: int, n: int) -> Shape:
    fit(len(x) == 2 and at + n <= int(x[1]), f"columns {at} to {at + n}", x)
    return (x[0], n)


@op(_columns_shape)
def columns(x: Floats, at: int, n: int) -> Floats:
    """x[:, at : at + n]."""
    return x[:, at : at + n]


def _gated_shape(gate: Shape, up: Shape, act: str) -> Shape:
    fit(gate == up, "a gate needs equal shapes", gate, up)
    return gate


@op(_gated_shape)
def gated(gate: Floats, up: Floats, act: str) -> Floats:
    """act(gate) * up, where they could not be one product."""
    return ops.OPS[act].meaning(gate) * up


def _make(
    x: Node, *others: Node, layer: int | None, n: int, gate: str = "", residual: bool = False
) -> Node:
    biased = len(others) > n + residual
    return make(
        "product", x, *others, layer=layer, n=n, gate=gate, biased=biased, residual=residual
    )


def _from_linear(linear: Node) -> Node:
    return _make(*linear.inputs, layer=linear.layer, n=1)


def _gate(act: str) -> Rule:
    def become(mul: Node, gate: Node, up: Node) -> Node:
        plain = not any(
            p.attrs.get("residual") or p.attrs.get("biased") or p.attrs.get("n") != 1
            for p in (gate, up)
        )
        same = (
            plain and gate.inputs[0] is up.inputs[0] and gate.inputs[1].dtype == up.inputs[1].dtype
        )
        if not same:
            return make("gated", gate, up, layer=mul.layer, act=act)
        return _make(gate.inputs[0], gate.inputs[1], up.inputs[1], layer=mul.layer, n=2, gate=act)

    active = Pattern(act, Pattern("product", name="gate", once=True), once=True)
    return Rule(
        Pattern("mul", active, Pattern("product", name="up", once=True), name="mul"), become
    )


def _residual(first: bool) -> Rule:
    def become(add: Node, x: Node, inner: Node) -> Node | None:
        if inner["residual"] or inner["gate"] or inner["n"] != 1 or x is inner:
            return None
        return _make(*inner.inputs, x, layer=add.layer, n=1, residual=True)

    inner, x = Pattern("product", name="inner", once=True), anything("x")
    return Rule(Pattern("add", *((inner, x) if first else (x, inner)), name="add"), become)


def fuse_products(graph: Graph) -> Graph:
    """The graph with products in place of linears, and q, k, v (or gate and up of two formats)
    computed at once.
    """
    graph = rewrite(graph, [Rule(Pattern("linear", name="linear"), _from_linear)])
    graph = rewrite(graph, [*map(_gate, GATES), _residual(True), _residual(False)])
    return _join(graph)


def _join(graph: Graph) -> Graph:
    """Products that read the same x become one; rows of a tile never belong to two weights."""
    groups: dict[tuple[Node, bool], list[Node]] = {}
    for node in graph.find("product"):
        plain = node["n"] == 1 and not node["residual"] and not node["gate"]
        if plain and int(node.shape[-1]) % ROWS == 0:
            groups.setdefault((node.inputs[0], bool(node["biased"])), []).append(node)
    wide: dict[Node, tuple[Node, int]] = {}  # product -> the first of its group, its first column
    for group in groups.values():
        at = 0
        for node in group if len(group) > 1 else ():
            wide[node] = (group[0], at)
            at += int(node.shape[-1])
    by_first = {group[0]: group for group in groups.values() if len(group) > 1}
    new: dict[Node, Node] = {}
    joined: dict[Node, Node] = {}
    for old in graph.nodes:
        if old in by_first:
            parts = by_first[old]
            x, operands = new[old.inputs[0]], [p.inputs[1] for p in parts]
            operands += [p.inputs[2] for p in parts if p["biased"]]
            joined[old] = _make(x, *operands, layer=old.layer, n=len(parts))
        if old in wide:
            first, at = wide[old]
            new[old] = make("columns", joined[first], layer=old.layer, at=at, n=int(old.shape[-1]))
        else:
            new[old] = replace(old, inputs=tuple(new[i] for i in old.inputs))
    return Graph(tuple(new.get(i, i) for i in graph.inputs), tuple(new[o] for o in graph.outputs))
