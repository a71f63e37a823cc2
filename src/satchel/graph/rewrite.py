"""Patterns over nodes, and a rewriter that replaces what they match.

Two scales in a row are one:

    inner = Pattern("scale", anything("x"), name="inner", once=True)
    outer = Pattern("scale", inner, name="outer")

    def once(outer, inner, x):
        return make("scale", x, layer=outer.layer, by=inner["by"] * outer["by"])

    graph = rewrite(graph, [Rule(outer, once)])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from satchel.graph.graph import Graph
from satchel.graph.node import Attr, Node

Found = dict[str, Node]


class Pattern:
    """Matches a node of one of the ops `op` ("" for any; "a|b" for either) whose operands match.

    Without operand patterns, any operands do. A name that occurs twice must match the same node
    twice. `once`: the node has no other reader, so that it may vanish into what reads it. `attrs`
    must be those of the node.
    """

    def __init__(
        self, op: str, *operands: Pattern, name: str = "", once: bool = False, **attrs: Attr
    ) -> None:
        self.ops = frozenset(op.split("|")) if op else None
        self.operands = operands
        self.name = name
        self.once = once
        self.attrs = attrs

    def match(self, node: Node, n_readers: Callable[[Node], int], found: Found) -> Found | None:
        """`found` with what this pattern names added, or None. `found` itself does not change."""
        if self.ops is not None and node.op not in self.ops:
            return None
        if self.once and n_readers(node) != 1:
            return None
        if any(node.attrs.get(name, ...) != value for name, value in self.attrs.items()):
            return None
        if self.name:
            if found.get(self.name, node) is not node:
                return None
            found = {**found, self.name: node}
        if not self.operands:
            return found
        if len(self.operands) != len(node.inputs):
            return None
        for pattern, operand in zip(self.operands, node.inputs, strict=True):
            matched = pattern.match(operand, n_readers, found)
            if matched is None:
                return None
            found = matched
        return found


def anything(name: str = "") -> Pattern:
    """Matches every node."""
    return Pattern("", name=name)


@dataclass(frozen=True)
class Rule:
    """What `pattern` matches becomes what `become` makes of the named nodes, or stays if None."""

    pattern: Pattern
    become: Callable[..., Node | None]


def rewrite(graph: Graph, rules: Sequence[Rule]) -> Graph:
    """Replace, operands before readers, until no rule applies. The first rule that applies wins."""
    readers = {node: len(found) for node, found in graph.readers.items()}
    for node in graph.outputs:
        readers[node] += 1
    new: dict[Node, Node] = {}

    def n_readers(node: Node) -> int:
        return readers.get(node, 1)  # a node that a rule has made inside its replacement

    def apply_rules(node: Node) -> Node | None:
        for rule in rules:
            found = rule.pattern.match(node, n_readers, {})
            made = None if found is None else rule.become(**found)
            if made is not None and made is not node:
                return made
        return None

    for old in graph.nodes:
        operands = tuple(new[operand] for operand in old.inputs)
        moved = any(a is not b for a, b in zip(operands, old.inputs, strict=True))
        node = replace(old, inputs=operands) if moved else old
        count = readers[old]
        readers[node] = count
        while (made := apply_rules(node)) is not None:
            node = made
            readers[node] = count
        new[old] = node
    return Graph(graph.inputs, tuple(new[node] for node in graph.outputs))
