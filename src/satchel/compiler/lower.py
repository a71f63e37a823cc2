"""From a graph to a plan: each node becomes steps, each value a buffer, each weight a recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from satchel.base.errors import KernelError
from satchel.compiler.limits import Limits, max_pages, moved_name, tables_name
from satchel.compiler.lower_attention import caches_of, moves_inputs
from satchel.compiler.lowering import (
    NONE,
    RULES,
    Lowered,
    Lowering,
    Place,
    code_bytes,
    lowers,
    runs_name,
    width_of,
)
from satchel.compiler.memory import plan_memory
from satchel.compiler.place_quantize import reads_codes
from satchel.compiler.weights import FileRows, Vector, matrix_of
from satchel.formats.packed import ROWS, packed, packed_for
from satchel.graph.graph import Graph, Node
from satchel.kernels import (
    activation,
    embed,
    matmul,
    norm,
    quantize,
    select,
)
from satchel.lang.kernel import Kernel
from satchel.lang.target import Target
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.runtime.batch import MAX_WANTED, RANKED, STRIP
from satchel.runtime.plan import Arg, Count, Plan, Ref

COUNTS = ("tokens", "wanted", "embedded", "groups", "whole", "parts", "split", "together")
"""What a run is told of its batch; the last five are of attention, see CompiledModel."""

NEAR = 512
"""Logits among which the ranked ones are looked for."""


def lower_graph(graph: Graph, target: Target, limits: Limits, tiles: Tiles = DEFAULT) -> Lowered:
    """The plan of a fused graph. Raises KernelError where the plan would not be sound."""
    low = Lowering(target, limits, caches_of(graph, limits), tiles)
    tables = limits.max_sequences * max_pages(limits)
    low.buffer("none", 64, "scratch")
    for name, n in (
        ("tokens", limits.max_batch),
        ("positions", limits.max_batch),
        ("sequences", limits.max_batch),
        ("wanted", MAX_WANTED),
        ("embedded", limits.max_batch),
        *((tables_name(i), tables) for i in range(len(low.caches))),
        ("groups", 4 * limits.max_batch),
    ):
        low.buffer(name, 4 * n, "input")
    for name, n in moves_inputs(low):
        low.buffer(name, 4 * n, "input")
    for node in graph.nodes:
        if node.is_leaf:
            continue
        if node.op not in RULES:
            raise KernelError(f"the compiler has no kernel for {node!r} of layer {node.layer}")
        RULES[node.op](low, node)
    lower_maxima(low, graph.outputs[0])
    for node, name in zip(graph.outputs, ("logits", "states"), strict=True):
        _name_output(low, low.places[node].buffer, name)
    steps = tuple(sorted(low.steps, key=lambda s: s.phase))
    buffers = plan_memory(tuple(low.buffers.values()), steps)
    runs = sorted(runs_name(*key) for key in low.run_lengths)
    moved = [moved_name(i) for i in range(len(low.caches))] if limits.moves else []
    plan = Plan(
        steps,
        buffers,
        (*COUNTS, *moved, *runs),
        dict.fromkeys(low.builds, "unbuilt"),
    )
    if low.attention is None:
        raise KernelError("a graph without attention has no plan")
    return Lowered(plan.check(), low.builds, low.weights, low.attention, low.caches)


def lower_maxima(low: Lowering, logits: Node) -> None:
    """The last steps: what a sampler asks of the logits first. See runtime.batch.Model.maxima and
    `ranked`.
    """
    x, n = low.places[logits], width_of(logits)
    n_strips = -(-n // STRIP)
    args = {
        "maxima": Ref(low.buffer("maxima", 4 * n_strips * MAX_WANTED, "output")),
        "x": x,
        "n": n,
        "x_stride": x.stride,
        "n_strips": n_strips,
    }
    tiles = Count(-(-n_strips // select.RUN), low.rows(logits)[0])
    low.step(select.strip_maxima, logits, tiles, "maxima", args, note="maxima", strip=STRIP)
    room = 4 * MAX_WANTED * (NEAR + select.LANES)
    args |= {
        "maxima": Ref("maxima"),
        "ids": Ref(low.buffer("ranked", 4 * RANKED * MAX_WANTED, "output")),
        "greatest": Ref(low.buffer("greatest", 4 * RANKED * MAX_WANTED, "output")),
        "places": Ref(low.buffer("near_places", room, "scratch")),
        "values": Ref(low.buffer("near_values", room, "scratch")),
    }
    each = Count(1, low.rows(logits)[0])
    low.step(
        select.ranked, logits, each, "ranked", args,
        note="ranked", strip=STRIP, k=RANKED, room=NEAR,
    )  # fmt: skip


def _name_output(low: Lowering, old: str, name: str) -> None:
    """The buffer of an output gets its name, and outlives the run."""
    low.buffers[name] = replace(low.buffers.pop(old), name=name, kind="output")

    def renamed(arg: Arg) -> Arg:
        return replace(arg, buffer=name) if isinstance(arg, Ref) and arg.buffer == old else arg

    low.steps = [replace(s, args=tuple(map(renamed, s.args))) for s in low.steps]


# ---- a rule for each op --------------------------------------------------------------------------


@lowers("embed", "embed_scaled")
def lower_embed(low: Lowering, node: Node) -> None:
    table, out = node.inputs[0], low.new(node)
    n_bytes = int(table.shape[0]) * row_bytes(table)
    rows = low.weight(f"file/{table.name}", FileRows(table.name, n_bytes))
    args = {
        "y": out,
        "table": rows,
        "tokens": Ref("tokens"),
        "n": int(table.shape[1]),
        "y_stride": out.stride,
        "by": float(str(node.attrs.get("by", 1.0))),
    }
    low.step(embed.embed, node, low.each_row(node), out, args, format=table.dtype)


def row_bytes(table: Node) -> int:
    return packed(table.dtype).block.row_bytes(int(table.shape[1]))


@lowers("split_heads", "join_heads")
def lower_view(low: Lowering, node: Node) -> None:
    low.places[node] = low.places[node.inputs[0]]


@lowers("columns")
def lower_columns(low: Lowering, node: Node) -> None:
    whole = low.places[node.inputs[0]]
    low.places[node] = Place(whole.buffer, whole.stride, whole.offset + 4 * int(str(node["at"])))


@lowers("quantize")
def lower_quantize(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {"out": out, "x": x, "n": width_of(node), "x_stride": x.stride}
    lower_codes(low, node, quantize.quantize, args)


@lowers("norm_quantize")
def lower_norm_quantize(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {
        "out": out,
        "x": x,
        "w": low.vector(node.inputs[1]),
        "n": width_of(node),
        "x_stride": x.stride,
        "eps": float(str(node["eps"])),
    }
    lower_codes(low, node, quantize.norm_quantize, args)


def lower_codes(low: Lowering, node: Node, kernel: Kernel, args: dict[str, Any]) -> None:
    """The step that writes codes, in the order of the passes of all products that read them."""
    digits, (rows, _) = int(str(node["digits"])), low.rows(node)
    widths = pass_shape(low, digits)["widths"]
    args["n_rows"] = rows
    low.step(kernel, node, low.each_row(node), args["out"], args, digits=digits, widths=widths)


def pass_shape(low: Lowering, digits: int) -> dict[str, Any]:
    return matmul.pass_shape(low.target, digits, low.tiles)


@lowers("rms_norm", "norm_add")
def lower_norm(low: Lowering, node: Node) -> None:
    x, out, add = low.places[node.inputs[0]], low.new(node), node.op == "norm_add"
    residual = low.places[node.inputs[2]] if add else None
    n, heads = int(node.shape[-1]), int(node.shape[1]) if len(node.shape) == 3 else 1
    per_head = (
        {"x_stride": n, "y_stride": n}
        if heads > 1
        else {"x_stride": x.stride, "y_stride": out.stride}
    )
    args = {
        "y": out,
        "x": x,
        "w": low.vector(node.inputs[1]),
        "residual": residual or NONE,
        "n": n,
        **per_head,
        "residual_stride": residual.stride if residual else 0,
        "eps": float(str(node["eps"])),
    }
    low.step(norm.rms_norm, node, Count(heads, low.rows(node)[0]), out, args, add=add)


@lowers("product")
def lower_product(low: Lowering, node: Node) -> None:
    x, *others = node.inputs
    n = int(str(node["n"]))
    weights, biases = others[:n], others[n : 2 * n] if node["biased"] else []
    out, source = low.new(node), low.places[x]
    gate = str(node["gate"]) or None
    residual = low.places[others[-1]] if node["residual"] else None
    digits = int(str(x.attrs.get("digits", 1)))
    shape = pass_shape(low, digits)
    x_bytes = code_bytes(int(x.shape[-1])) if reads_codes(node) else 4 * source.stride
    length = matmul.run_length(digits * x_bytes, digits * shape["widths"][0], low.tiles)
    length = min(length, low.rows(node)[1])
    column = 0
    for run in [weights] if gate else same_format_runs(weights):
        layout = packed_for(run[0].dtype, low.target.signed_codes)
        recipe = matrix_of(tuple(run), layout.name, interleaved=gate is not None)
        first = weights.index(run[0])
        bias = (
            low.weight(
                "/".join(b.name for b in biases[first : first + len(run)]),
                bias_of(biases[first : first + len(run)]),
            )
            if biases
            else NONE
        )
        tiles = sum(-(-r // ROWS) for r in (recipe.rows[:1] if gate else recipe.rows))
        place = Place(out.buffer, out.stride, out.offset + 4 * column)
        blocks = recipe.columns // layout.elements
        args = {
            "y": place,
            "w": low.weight("/".join(recipe.tensors), recipe),
            "x": source,
            "bias": bias,
            "residual": residual or NONE,
            "n_blocks": blocks,
            "n_tiles": tiles,
            "n_tokens": low.rows(node)[0],
            "run": length,
            "ahead": low.tiles.ahead_bytes,
            "x_bytes": x_bytes,
            "y_stride": out.stride,
            "residual_stride": residual.stride if residual else 0,
        }
        low.step(
            matmul.matmul,
            node,
            low.runs(node, tiles, length),
            out,
            args,
            format=layout.name,
            gate=gate,
            has_bias=bool(biases),
            has_residual=residual is not None,
            digits=digits,
            **shape,
        )
        column += sum(recipe.rows)


def same_format_runs(weights: list[Node]) -> list[list[Node]]:
    """Neighbours of one format, which can be one matrix."""
    runs: list[list[Node]] = []
    for w in weights:
        if runs and runs[-1][-1].dtype == w.dtype:
            runs[-1].append(w)
        else:
            runs.append([w])
    return runs


def bias_of(biases: list[Node]) -> Vector:
    return Vector(
        tuple(b.name for b in biases), tuple(-(-int(b.shape[0]) // ROWS) * ROWS for b in biases)
    )


# ---- the rest ------------------------------------------------------------------------------------


@lowers("pick")
def lower_pick(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {
        "y": out,
        "x": x,
        "wanted": Ref(node.inputs[1].name),
        "n": width_of(node),
        "x_stride": x.stride,
        "y_stride": out.stride,
    }
    low.step(select.pick, node, low.each_row(node), out, args)


@lowers("gated")
def lower_gated(low: Lowering, node: Node) -> None:
    gate, up = (low.places[i] for i in node.inputs)
    out = low.new(node)
    args = {
        "y": out,
        "gate": gate,
        "up": up,
        "n": width_of(node),
        "gate_stride": gate.stride,
        "up_stride": up.stride,
        "y_stride": out.stride,
    }
    low.step(activation.gated, node, low.each_row(node), out, args, act=node["act"])


@lowers("softcap")
def lower_softcap(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {
        "y": out,
        "x": x,
        "n": width_of(node),
        "stride": x.stride,
        "y_stride": out.stride,
        "cap": float(str(node["cap"])),
    }
    low.step(activation.softcap, node, low.each_row(node), out, args)
