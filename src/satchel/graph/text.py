"""A graph as text, and back.

    input tokens i32[tokens]
    %0 = embed(token_embd.weight Q8_0[49152, 576], tokens) f32[tokens, 576]
    %0.0 = rms_norm(%0, blk.0.attn_norm.weight F32[576], eps=1e-05) f32[tokens, 576]
    output %1

`%3.7` is node 7 of layer 3, `%2` node 2 of those outside of layers: a change in one layer renumbers
only that layer.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator

from satchel.base.errors import FileFormatError
from satchel.graph.node import Dim, Node, Shape, input_node, weight_node
from satchel.graph.ops import make

Nodes = tuple[Node, ...]


def print_graph(inputs: Nodes, nodes: Nodes, outputs: Nodes, layer: int | None = None) -> str:
    """The text of a whole graph, or of one layer's nodes. `nodes`: in order, operands first."""
    names = {node: node.name for node in inputs}
    counts: Counter[int | None] = Counter()
    blocks: list[tuple[int | None, list[str]]] = [(None, [])]
    for node in inputs:
        blocks[0][1].append(f"input {node.name} {_type(node)}")
    for node in nodes:
        if node.is_leaf:
            names[node] = node.name if node.op == "input" else f"{node.name} {_type(node)}"
            continue
        prefix = "" if node.layer is None else f"{node.layer}."
        names[node] = f"%{prefix}{counts[node.layer]}"
        counts[node.layer] += 1
        if blocks[-1][0] != node.layer:
            blocks.append((node.layer, []))
        blocks[-1][1].append(f"{names[node]} = {_call(node, names)} {_type(node)}")
    if layer is not None:
        return "".join(line + "\n" for at, lines in blocks if at == layer for line in lines)
    blocks.append((None, [f"output {names[node]}" for node in outputs]))
    return "\n".join("".join(line + "\n" for line in lines) for _, lines in blocks if lines)


def _type(node: Node) -> str:
    return f"{node.dtype}[{', '.join(map(str, node.shape))}]"


def _call(node: Node, names: dict[Node, str]) -> str:
    operands = [names[operand] for operand in node.inputs]
    attrs = [f"{name}={value!r}" for name, value in node.attrs.items()]
    return f"{node.op}({', '.join(operands + attrs)})"


_INPUT = re.compile(r"input (\S+) (\w+)\[(.*)\]")
_NODE = re.compile(r"(%(?:(\d+)\.)?\d+) = (\w+)\((.*)\) (\w+)\[([^\]]*)\]")
_WEIGHT = re.compile(r"(\S+) (\w+)\[(.*)\]")
_ATTR = re.compile(r"(\w+)=(.*)")
_TOKEN = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|.""")


def parse_graph(text: str) -> tuple[Nodes, Nodes]:
    """The inputs and outputs that `print_graph` wrote. Raises FileFormatError with the line."""
    known: dict[str, Node] = {}
    inputs: list[Node] = []
    outputs: list[Node] = []
    for number, line in enumerate(text.splitlines(), 1):
        try:
            if match := _INPUT.fullmatch(line):
                name, dtype, shape = match.groups()
                known[name] = input_node(name, _shape(shape), dtype)
                inputs.append(known[name])
            elif match := _NODE.fullmatch(line):
                known[match[1]] = _node(match, known)
            elif line.startswith("output "):
                outputs.append(known[line.removeprefix("output ")])
            elif line:
                raise ValueError("it is no input, node or output")
        except (KeyError, ValueError, SyntaxError, FileFormatError) as error:
            raise FileFormatError(f"line {number} of the graph can't be read: {error}") from error
    return tuple(inputs), tuple(outputs)


def _node(match: re.Match[str], known: dict[str, Node]) -> Node:
    _, layer, op, call, dtype, shape = match.groups()
    operands: list[Node] = []
    attrs: dict[str, object] = {}
    for part in _parts(call):
        if attr := _ATTR.fullmatch(part):
            attrs[attr[1]] = ast.literal_eval(attr[2])
        elif weight := _WEIGHT.fullmatch(part):
            name, form, dims = weight.groups()
            leaf = known.setdefault(name, weight_node(name, _shape(dims), form))
            if (leaf.dtype, leaf.shape) != (form, _shape(dims)):
                raise ValueError(f"{name} has two types")
            operands.append(leaf)
        else:
            operands.append(known[part])
    node = make(op, *operands, layer=None if layer is None else int(layer), **attrs)  # pyright: ignore
    if (node.dtype, node.shape) != (dtype, _shape(shape)):
        raise ValueError(f"{op} gives {_type(node)}, not {dtype}[{shape}]")
    return node


def _parts(call: str) -> Iterator[str]:
    """What stands between the commas that are in no quotes and no brackets."""
    part, depth = "", 0
    for token in _TOKEN.findall(call):
        if token == "," and depth == 0:
            yield part.strip()
            part = ""
        else:
            depth += (token in "([") - (token in ")]")
            part += token
    if part:
        yield part.strip()


def _shape(text: str) -> Shape:
    def dim(part: str) -> Dim:
        return int(part) if part.isdigit() else part

    return tuple(dim(part.strip()) for part in text.split(",") if part.strip())
