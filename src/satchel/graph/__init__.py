"""Level 2: the graph of a model: nodes, ops, text form, rewriter, and its meaning in numpy."""

from satchel.graph.graph import Graph
from satchel.graph.node import Attr, Dim, Node, Shape, ShapeError, input_node, weight_node
from satchel.graph.ops import OPS, Op, make, op
from satchel.graph.reference import Weights, WeightsByRows, evaluate
from satchel.graph.rewrite import Pattern, Rule, anything, rewrite
from satchel.graph.rope import Scaling, frequencies
from satchel.graph.tensor import Tensor

__all__ = [
    "OPS", "Attr", "Dim", "Graph", "Node", "Op", "Pattern", "Rule", "Scaling", "Shape",
    "ShapeError", "Tensor", "Weights", "WeightsByRows", "anything", "evaluate", "frequencies",
    "input_node", "make", "op", "rewrite", "weight_node",
]  # fmt: skip
