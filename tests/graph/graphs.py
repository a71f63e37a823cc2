"""Random graphs, for tests of whatever holds for all of them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from satchel.graph import Graph, Node, input_node, make, weight_node

Draw = Callable[[st.SearchStrategy[Any]], Any]

TOKENS = input_node("tokens", ("tokens",), "i32")
POSITIONS = input_node("positions", ("tokens",), "i32")
WANTED = input_node("wanted", ("wanted",), "i32")
DIM, HEADS, VOCAB = 8, 2, 12

floats = st.floats(1e-6, 1e6)


@functools.cache
def _weight(name: str, *shape: int) -> Node:
    return weight_node(name, shape, "F32")


def _attend(x: Node, layer: int, draw: Draw) -> Node:
    heads = make("split_heads", x, layer=layer, n=HEADS)
    turned = make(
        "rope",
        heads,
        POSITIONS,
        layer=layer,
        theta=draw(st.floats(2, 1e6)),
        dims=draw(st.sampled_from([2, 4])),
        pairs=draw(st.sampled_from(["adjacent", "halves"])),
    )
    seen = make(
        "attention",
        turned,
        heads,
        heads,
        POSITIONS,
        layer=layer,
        cache=layer,
        scale=draw(st.floats(0.1, 2)),
        window=draw(st.none() | st.integers(1, 9)),
        softcap=draw(st.none() | st.floats(1, 50)),
    )
    return make("join_heads", seen, layer=layer)


def _step(nodes: list[Node], layer: int, draw: Draw) -> Node:
    x, y = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
    match draw(st.sampled_from(["add", "mul", "scale", "norm", "linear", "attend", "silu", "cap"])):
        case "scale":
            return make("scale", x, layer=layer, by=draw(st.floats(-2, 2)))
        case "norm":
            norm = _weight(f"blk.{layer}.attn_norm.weight", DIM)
            return make("rms_norm", x, norm, layer=layer, eps=draw(st.floats(1e-6, 1e-2)))
        case "linear":
            weight = _weight(f"blk.{layer}.ffn_gate.weight", DIM, DIM)
            bias = [_weight(f"blk.{layer}.ffn_gate.bias", DIM)] if draw(st.booleans()) else []
            return make("linear", x, weight, *bias, layer=layer)
        case "attend":
            return _attend(x, layer, draw)
        case "silu":
            return make("silu", x, layer=layer)
        case "cap":
            return make("softcap", x, layer=layer, cap=draw(st.floats(1, 50)))
        case op:
            return make(op, x, y, layer=layer)


@st.composite
def graphs(draw: Draw) -> Graph:
    """A graph from tokens to logits [wanted, VOCAB] by random ops, with shared nodes."""
    table = _weight("token_embd.weight", VOCAB, DIM)
    nodes = [make("embed", table, TOKENS)]
    for layer in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 5))):
            nodes.append(_step(nodes, layer, draw))
    head = make("linear", make("pick", nodes[-1], WANTED), table)
    return Graph((TOKENS, POSITIONS, WANTED), (head,))
