"""From a graph to a plan: each node becomes steps, each value a buffer, each weight a recipe for its bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from satchel.base.errors import KernelError, UnsupportedError
from satchel.compiler.memory import plan_memory
from satchel.compiler.place_quantize import reads_codes
from satchel.compiler.weights import FileRows, Turns, Vector, Weight, matrix_of
from satchel.formats.packed import ROWS, packed
from satchel.graph.graph import Graph, Node
from satchel.graph.rope import Scaling
from satchel.kernels import activation, attention, embed, matmul, norm, pages, quantize, rope, select
from satchel.lang.kernel import Build, Kernel
from satchel.lang.target import Target
from satchel.runtime.batch import MAX_WANTED
from satchel.runtime.plan import Arg, Buffer, Count, Float, Int, Plan, Ref, Scalar, Step


@dataclass(frozen=True)
class Limits:
    """What a plan has room for: tokens in a run, positions of a sequence, pages, sequences in a run."""

    max_batch: int
    context: int
    n_pages: int
    max_sequences: int


@dataclass(frozen=True)
class Place:
    """Where a value's rows are: so many bytes into a buffer, `stride` elements from row to row."""

    buffer: str
    stride: int
    offset: int = 0

    @property
    def ref(self) -> Ref:
        return Ref(self.buffer, self.offset)


@dataclass(frozen=True)
class Lowered:
    """A plan, its kernels by symbol, and what its weight buffers hold."""

    plan: Plan
    builds: dict[str, Build]
    weights: dict[str, Weight]
    group_tokens: int


Lower: TypeAlias = "Callable[[Lowering, Node], None]"
RULES: dict[str, Lower] = {}


def lowers(*ops: str) -> Callable[[Lower], Lower]:
    """Enter a function as the way to lower these ops."""

    def enter(rule: Lower) -> Lower:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return enter


@dataclass
class Lowering:
    """A plan in the making."""

    target: Target
    limits: Limits
    places: dict[Node, Place] = field(default_factory=dict[Node, Place])
    steps: list[Step] = field(default_factory=list[Step])
    buffers: dict[str, Buffer] = field(default_factory=dict[str, Buffer])
    builds: dict[str, Build] = field(default_factory=dict[str, Build])
    weights: dict[str, Weight] = field(default_factory=dict[str, Weight])
    ready: dict[str, int] = field(default_factory=dict[str, int])  # buffer -> the phase after its last writer
    group_tokens: int = 0  # tokens in a tile of attention
    run_lengths: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])  # (scalar, rows of a run)

    def buffer(self, name: str, n_bytes: int, kind: str) -> str:
        self.buffers[name] = Buffer(name, n_bytes, kind)
        return name

    def rows(self, node: Node) -> tuple[str, int]:
        """The scalar that counts a node's rows, and the most there can be."""
        return ("wanted", MAX_WANTED) if node.shape[0] == "wanted" else ("tokens", self.limits.max_batch)

    def new(self, node: Node, name: str = "") -> Place:
        """A buffer for a node's value: whole tiles of rows, codes with their scales."""
        width = width_of(node)
        stride = -(-width // ROWS) * ROWS
        row_bytes = code_bytes(width) * int(str(node["digits"])) if node.dtype == "q8" else 4 * stride
        layer = f"{node.layer}." if node.layer is not None else ""
        name = name or f"x{layer}{len(self.buffers)}"
        kind = "output" if name == "logits" else "arena"
        self.places[node] = place = Place(self.buffer(name, self.rows(node)[1] * row_bytes, kind), stride)
        return place

    def weight(self, name: str, recipe: Weight) -> Ref:
        """A weight buffer, made once for all who name it."""
        if name not in self.weights:
            self.weights[name] = recipe
            self.buffer(name, recipe.bytes, "weight")
        return Ref(name)

    def vector(self, node: Node) -> Ref:
        return self.weight(node.name, Vector((node.name,), (-(-int(node.shape[0]) // ROWS) * ROWS,)))

    def step(self, kernel: Kernel, node: Node, tiles: Count, writes: Place | str, args: dict[str, Any], **constants: Any) -> None:
        """Run a kernel, once all that its arguments name is there."""
        build = kernel.build(self.target, **constants)
        self.builds[build.name] = build
        if args.keys() != kernel.slots.keys():
            raise TypeError(f"{kernel.name} takes {list(kernel.slots)}, not {list(args)}")
        slots = tuple(as_arg(args[name]) for name in kernel.slots)
        written = writes.buffer if isinstance(writes, Place) else writes
        read = [a.buffer for a in slots if isinstance(a, Ref) and a.buffer != written]
        phase = max((self.ready.get(b, 0) for b in read), default=0)
        self.ready[written] = max(self.ready.get(written, 0), phase + 1)
        note = node.op if node.layer is None else f"layer {node.layer}: {node.op}"
        self.steps.append(Step(build.name, slots, tiles, phase, note))

    def runs(self, node: Node, factor: int, length: int) -> Count:
        """So many tiles for each run of `length` rows."""
        scalar, most = self.rows(node)
        if length >= most:
            return Count(factor)
        self.run_lengths.add((scalar, length))
        return Count(factor, runs_name(scalar, length))

    def each_row(self, node: Node) -> Count:
        return Count(1, self.rows(node)[0])


def runs_name(scalar: str, length: int) -> str:
    """The scalar that counts runs of so many rows."""
    return f"{scalar}_by_{length}"


def scalars_of(plan: Plan, counts: dict[str, int]) -> dict[str, int]:
    """All scalars of a plan, given those that are not counts of runs."""
    found: dict[str, int] = {}
    for name in plan.scalars:
        base, by, length = name.partition("_by_")
        found[name] = -(-counts[base] // int(length)) if by else counts[base]
    return found


def code_bytes(width: int) -> int:
    """A row of so many codes, with their scales and sums."""
    return width // quantize.CODES * quantize.BLOCK_BYTES


def width_of(node: Node) -> int:
    """The elements of a node's row, all axes but the first together."""
    n = 1
    for d in node.shape[1:]:
        n *= int(d)
    return n


def as_arg(x: Any) -> Arg:
    match x:
        case Place():
            return x.ref
        case str():
            return Scalar(x)
        case float():
            return Float(x)
        case int():
            return Int(x)
        case _:
            return x


NONE = Ref("none")
"""Stands for an argument that a kernel, with its constants, does not touch."""


def lower_graph(graph: Graph, target: Target, limits: Limits) -> Lowered:
    """The plan of a fused graph. Raises KernelError where the plan would not be sound."""
    low = Lowering(target, limits)
    low.buffer("none", 64, "scratch")
    for name, n in (("tokens", limits.max_batch), ("positions", limits.max_batch), ("sequences", limits.max_batch),
                    ("wanted", MAX_WANTED), ("tables", limits.max_sequences * max_pages(limits)),
                    ("groups", 4 * limits.max_batch)):  # fmt: skip
        low.buffer(name, 4 * n, "input")
    for node in graph.nodes:
        if node.is_leaf:
            continue
        if node.op not in RULES:
            raise KernelError(f"the compiler has no kernel for {node!r} of layer {node.layer}")
        RULES[node.op](low, node)
    _name_output(low, low.places[graph.outputs[0]].buffer)
    steps = tuple(sorted(low.steps, key=lambda s: s.phase))
    buffers = plan_memory(tuple(low.buffers.values()), steps)
    runs = sorted(runs_name(*key) for key in low.run_lengths)
    plan = Plan(steps, buffers, ("tokens", "wanted", "groups", *runs), dict.fromkeys(low.builds, "unbuilt"))
    return Lowered(plan.check(), low.builds, low.weights, low.group_tokens)


def max_pages(limits: Limits) -> int:
    return -(-limits.context // pages.PAGE)


def _name_output(low: Lowering, name: str) -> None:
    """The buffer of the graph's output is called logits, and outlives the run."""
    from dataclasses import replace

    old = low.buffers.pop(name)
    low.buffers["logits"] = replace(old, name="logits", kind="output")

    def renamed(arg: Arg) -> Arg:
        return replace(arg, buffer="logits") if isinstance(arg, Ref) and arg.buffer == name else arg

    low.steps = [replace(s, args=tuple(map(renamed, s.args))) for s in low.steps]


# ---- a rule for each op ----------------------------------------------------------------------------------------------


@lowers("embed", "embed_scaled")
def lower_embed(low: Lowering, node: Node) -> None:
    table, out = node.inputs[0], low.new(node)
    n_bytes = int(table.shape[0]) * row_bytes(table)
    rows = low.weight(f"file/{table.name}", FileRows(table.name, n_bytes))
    args = {"y": out, "table": rows, "tokens": Ref("tokens"), "n": int(table.shape[1]), "y_stride": out.stride,
            "by": float(str(node.attrs.get("by", 1.0)))}  # fmt: skip
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
    low.step(quantize.quantize, node, low.each_row(node), out, args, digits=node["digits"])


@lowers("norm_quantize")
def lower_norm_quantize(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {"out": out, "x": x, "w": low.vector(node.inputs[1]), "n": width_of(node), "x_stride": x.stride,
            "eps": float(str(node["eps"]))}  # fmt: skip
    low.step(quantize.norm_quantize, node, low.each_row(node), out, args, digits=node["digits"])


@lowers("rms_norm", "norm_add")
def lower_norm(low: Lowering, node: Node) -> None:
    x, out, add = low.places[node.inputs[0]], low.new(node), node.op == "norm_add"
    residual = low.places[node.inputs[2]] if add else None
    n, heads = int(node.shape[-1]), int(node.shape[1]) if len(node.shape) == 3 else 1
    per_head = {"x_stride": n, "y_stride": n} if heads > 1 else {"x_stride": x.stride, "y_stride": out.stride}
    args = {"y": out, "x": x, "w": low.vector(node.inputs[1]), "residual": residual or NONE, "n": n, **per_head,
            "residual_stride": residual.stride if residual else 0, "eps": float(str(node["eps"]))}  # fmt: skip
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
    shape = matmul.pass_shape(low.target.bits, low.target.registers, digits)
    x_bytes = code_bytes(int(x.shape[-1])) if reads_codes(node) else 4 * source.stride
    length = min(matmul.run_length(digits * x_bytes), low.rows(node)[1])
    column = 0
    for run in ([weights] if gate else same_format_runs(weights)):
        layout, recipe = packed(run[0].dtype), matrix_of(tuple(run), interleaved=gate is not None)
        first = weights.index(run[0])
        bias = low.weight("/".join(b.name for b in biases[first : first + len(run)]), bias_of(biases[first : first + len(run)])) \
            if biases else NONE  # fmt: skip
        tiles = sum(-(-r // ROWS) for r in (recipe.rows[:1] if gate else recipe.rows))
        place = Place(out.buffer, out.stride, out.offset + 4 * column)
        blocks = recipe.columns // layout.elements
        args = {"y": place, "w": low.weight("/".join(recipe.tensors), recipe), "x": source, "bias": bias,
                "residual": residual or NONE, "n_blocks": blocks, "n_tiles": tiles, "n_tokens": low.rows(node)[0], "run": length, "x_bytes": x_bytes,
                "y_stride": out.stride, "residual_stride": residual.stride if residual else 0}  # fmt: skip
        low.step(matmul.matmul, node, low.runs(node, tiles, length), out, args, format=run[0].dtype, gate=gate,
                 has_bias=bool(biases), has_residual=residual is not None, digits=digits, **shape)  # fmt: skip
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
    return Vector(tuple(b.name for b in biases), tuple(-(-int(b.shape[0]) // ROWS) * ROWS for b in biases))


# ---- attention -------------------------------------------------------------------------------------------------------


@lowers("rope_store")
def lower_rope_store(low: Lowering, node: Node) -> None:
    q, k, v = (node.inputs[i] for i in range(3))
    n_heads, n_kv, head_dim = int(q.shape[1]), int(k.shape[1]), int(k.shape[2])
    if int(v.shape[2]) != head_dim:
        raise UnsupportedError(f"values of {v.shape[2]} dims beside keys of {head_dim} have no kernel")
    normed, attrs = bool(node["normed"]), node.attrs
    kv = low.buffer(kv_name(node), low.limits.n_pages * pages.page_bytes(n_kv, head_dim), "kv")
    out = low.new(node)
    places = {"q": low.places[q], "k": low.places[k], "v": low.places[v]}
    args = {"q_out": out, "kv": Ref(kv), **places, **{f"{n}_stride": p.stride for n, p in places.items()},
            **{n: Ref(n) for n in ("positions", "sequences", "tables")}, "turns": turns_of(low, node, 4 + 2 * normed),
            "q_weight": low.vector(node.inputs[4]) if normed else NONE,
            "k_weight": low.vector(node.inputs[5]) if normed else NONE,
            "max_pages": max_pages(low.limits), "scale": float(str(attrs["scale"])), "eps": float(str(attrs["eps"]))}  # fmt: skip
    low.step(rope.rope_store, node, low.each_row(node), out, args, n_heads=n_heads, n_kv=n_kv, head_dim=head_dim,
             dims=attrs["dims"], pairs=attrs["pairs"], normed=normed)  # fmt: skip


def kv_name(node: Node) -> str:
    return f"kv.{node['cache']}"


def turns_of(low: Lowering, node: Node, n_before: int) -> Ref:
    """The table of cosines and sines, shared by all layers that turn alike."""
    names = ("scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", "orig_context")
    scaling = Scaling(**{n: node.attrs[f"rope_{n}"] for n in names if f"rope_{n}" in node.attrs})  # pyright: ignore
    factors = node.inputs[n_before].name if len(node.inputs) > n_before else None
    recipe = Turns(low.limits.context, int(str(node["dims"])), float(str(node["theta"])), scaling, factors)
    known = next((name for name, weight in low.weights.items() if weight == recipe), None)
    return low.weight(known or f"turns.{len(low.weights)}", recipe)


@lowers("attend")
def lower_attend(low: Lowering, node: Node) -> None:
    q = low.places[node.inputs[0]]
    n_heads, head_dim = (int(d) for d in node.inputs[0].shape[1:])
    n_kv, out = int(str(node["n_kv"])), low.new(node)
    shape = attention.group_shape(n_heads // n_kv, low.target.bits, low.target.registers)
    low.group_tokens = shape["group_tokens"]
    n_scratch = attention.scratch_bytes(low.limits.max_batch, n_kv, n_heads // n_kv, low.group_tokens)
    args = {"y": out, "scratch": Ref(low.buffer("attention", n_scratch, "scratch")), "q": q, "kv": Ref(kv_name(node)),
            **{n: Ref(n) for n in ("positions", "tables", "groups")}, "max_pages": max_pages(low.limits), "y_stride": out.stride}  # fmt: skip
    low.step(attention.attend, node, Count(n_kv, "groups"), out, args, n_kv=n_kv, per_kv=n_heads // n_kv, head_dim=head_dim,
             window=node["window"], softcap=node["softcap"], **shape)  # fmt: skip


# ---- the rest --------------------------------------------------------------------------------------------------------


@lowers("pick")
def lower_pick(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {"y": out, "x": x, "wanted": Ref("wanted"), "n": width_of(node), "x_stride": x.stride, "y_stride": out.stride}
    low.step(select.pick, node, low.each_row(node), out, args)


@lowers("gated")
def lower_gated(low: Lowering, node: Node) -> None:
    gate, up = (low.places[i] for i in node.inputs)
    out = low.new(node)
    args = {"y": out, "gate": gate, "up": up, "n": width_of(node), "gate_stride": gate.stride, "up_stride": up.stride,
            "y_stride": out.stride}  # fmt: skip
    low.step(activation.gated, node, low.each_row(node), out, args, act=node["act"])


@lowers("softcap")
def lower_softcap(low: Lowering, node: Node) -> None:
    x, out = low.places[node.inputs[0]], low.new(node)
    args = {"y": out, "x": x, "n": width_of(node), "stride": x.stride, "y_stride": out.stride, "cap": float(str(node["cap"]))}
    low.step(activation.softcap, node, low.each_row(node), out, args)
