"""Small steps that ride along with a neighbour: a scale after an embedding, a residual after a
norm, rope before attention.
"""

# ruff: noqa: ARG001

from __future__ import annotations

from typing import Any

from satchel.graph import ops
from satchel.graph.graph import Graph, Node, Shape
from satchel.graph.ops import Floats, Ints, make, op
from satchel.graph.rewrite import Pattern, Rule, anything, rewrite


def _embed_shape(table: Shape, tokens: Shape, by: float) -> Shape:
    return (tokens[0], table[1])


@op(_embed_shape)
def embed_scaled(table: Floats, tokens: Ints, by: float) -> Floats:
    """embed(table, tokens) * by."""
    return table[tokens] * table.dtype.type(by)


def _norm_add_shape(x: Shape, weight: Shape, residual: Shape, eps: float) -> Shape:
    return x


@op(_norm_add_shape)
def norm_add(x: Floats, weight: Floats, residual: Floats, eps: float) -> Floats:
    """residual + rms_norm(x)."""
    return residual + ops.rms_norm.meaning(x, weight, eps)


def _rope_shape(
    q: Shape, k: Shape, v: Shape, positions: Shape, *rest: Shape, **attrs: Any
) -> Shape:
    return q


@op(_rope_shape, rowwise=False)
def rope_store(
    q: Floats,
    k: Floats,
    v: Floats,
    positions: Ints,
    *rest: Any,
    cache: int,
    scale: float,
    eps: float,
    normed: bool,
    **turn: Any,
) -> tuple[Floats, Floats, Floats]:
    """Norms q and k if `normed`, turns both, scales q; k and v go to the cache. (Here: all three
    are handed on.)
    """
    if normed:
        q, k = (ops.rms_norm.meaning(x, w, eps) for x, w in zip((q, k), rest[:2], strict=True))
    factors = rest[2 * normed :]
    turn = {name.removeprefix("rope_"): value for name, value in turn.items()}
    q, k = (ops.rope.meaning(x, positions, *factors, **turn) for x in (q, k))
    return q * scale, k, v


def _attend_shape(q: Shape, positions: Shape, **attrs: Any) -> Shape:
    return q


@op(_attend_shape, rowwise=False)
def attend(
    stored: tuple[Floats, Floats, Floats], positions: Ints, *, cache: int, n_kv: int, **attrs: Any
) -> Floats:
    """Attention of the turned q over what the cache holds."""
    q, k, v = stored
    return ops.attention.meaning(q, k, v, positions, cache=cache, scale=1.0, **attrs)


def _cached(outer: Node, q: Node, k: Node, v: Node, positions: Node) -> Node | None:
    """attention(rope(q), rope(k), v): k and v go to the cache, q straight on. Only where q and k
    are turned and normed alike: the kernel has one table of turns, and one eps, for both.
    """
    if q.attrs != k.attrs or q.inputs[1:] != k.inputs[1:] or q.inputs[1] is not positions:
        return None
    q_norm, k_norm = ({"op": n.op, "eps": n.attrs.get("eps")} for n in (q.inputs[0], k.inputs[0]))
    if "rms_norm" in (q_norm["op"], k_norm["op"]) and q_norm != k_norm:
        return None
    heads: list[Node] = []
    norms: list[Node] = []
    eps = 0.0
    for turned in (q, k):
        head = turned.inputs[0]
        if head.op == "rms_norm":
            norms.append(head.inputs[1])
            eps, head = float(str(head["eps"])), head.inputs[0]
        heads.append(head)
    turn = {
        ("rope_" + n if n not in ("theta", "dims", "pairs") else n): v for n, v in q.attrs.items()
    }
    attrs = {
        **turn,
        "cache": outer["cache"],
        "scale": outer["scale"],
        "eps": eps,
        "normed": bool(norms),
    }
    rest = (*norms, *q.inputs[2:])
    stored = make("rope_store", *heads, v, positions, *rest, layer=outer.layer, **attrs)
    n_kv = int(k.shape[1])
    seen = {name: outer[name] for name in ("cache", "window", "softcap")}
    return make("attend", stored, positions, layer=outer.layer, n_kv=n_kv, **seen)


def fuse_small(graph: Graph) -> Graph:
    """The graph with these fused."""

    def scaled(outer: Node, inner: Node) -> Node:
        return make("embed_scaled", *inner.inputs, layer=outer.layer, by=outer["by"])

    def added(outer: Node, norm: Node, x: Node) -> Node | None:
        return (
            make("norm_add", *norm.inputs, x, layer=outer.layer, eps=norm["eps"])
            if len(x.shape) == 2
            else None
        )

    norm = Pattern("rms_norm", name="norm", once=True)
    q, k = (Pattern("rope", name=name, once=True) for name in "qk")
    return rewrite(
        graph,
        [
            Rule(Pattern("scale", Pattern("embed", name="inner", once=True), name="outer"), scaled),
            Rule(Pattern("add", norm, anything("x"), name="outer"), added),
            Rule(Pattern("add", anything("x"), norm, name="outer"), added),
            Rule(
                Pattern("attention", q, k, anything("v"), anything("positions"), name="outer"),
                _cached,
            ),
        ],
    )
