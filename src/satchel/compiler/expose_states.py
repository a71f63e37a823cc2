"""One more output: what the head reads, the final normed states, of tokens that are asked for.

They get steps of their own, whose rows are counted by `embedded`: a run that wants none of them
does no more work, and one that wants them alone computes no logits.
"""

from __future__ import annotations

from dataclasses import replace

from satchel.base.errors import UnsupportedError
from satchel.graph.graph import Graph, Node, input_node


def states_of(graph: Graph) -> Node:
    """The node of the states that the head reads: [wanted, dim]. Raises UnsupportedError."""
    heads = [node for node in graph.find("linear") if node.shape[0] == "wanted"]
    if len(heads) != 1:
        raise UnsupportedError(f"a graph has one head, and this one has {len(heads)}")
    return heads[0].inputs[0]


def expose_states(graph: Graph) -> Graph:
    """The graph of logits with a second output, the states [embedded, dim]."""
    rows = input_node("embedded", ("embedded",), "i32")

    def copied(node: Node) -> Node:
        if node.op == "pick":
            return replace(node, inputs=(node.inputs[0], rows), shape=("embedded", *node.shape[1:]))
        if node.shape[0] != "wanted":
            return node
        shape = ("embedded", *node.shape[1:])
        return replace(node, inputs=tuple(map(copied, node.inputs)), shape=shape)

    return Graph((*graph.inputs, rows), (*graph.outputs, copied(states_of(graph))))
