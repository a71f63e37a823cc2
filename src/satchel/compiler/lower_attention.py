"""Attention to a plan: where keys and values are kept, how they get there, and who reads them."""

from __future__ import annotations

from typing import Any

from satchel.base.errors import UnsupportedError
from satchel.compiler.limits import (
    MASS,
    Caches,
    Limits,
    group_pages,
    max_pages,
    moved_name,
    moves_names,
    tables_name,
)
from satchel.compiler.lowering import NONE, Lowering, lowers
from satchel.compiler.weights import Turns
from satchel.graph.graph import Graph, Node
from satchel.graph.rope import Scaling
from satchel.kernels import attention, mass, move, pages, rope
from satchel.kernels.cache_types import F16
from satchel.kernels.groups import n_segments
from satchel.runtime.plan import Count, Ref


@lowers("rope_store")
def lower_rope_store(low: Lowering, node: Node) -> None:
    q, k, v = (node.inputs[i] for i in range(3))
    n_heads, n_kv, head_dim = int(q.shape[1]), int(k.shape[1]), int(k.shape[2])
    if int(v.shape[2]) != head_dim:
        raise UnsupportedError(
            f"values of {v.shape[2]} dims beside keys of {head_dim} have no kernel"
        )
    normed, attrs = bool(node["normed"]), node.attrs
    group, caches = group_of(low, node)
    page_bytes = pages.page_bytes(n_kv, head_dim, low.limits.cache_types)
    kv = low.buffer(kv_name(node), caches.n_pages * page_bytes, "kv")
    out = low.new(node)
    turns = turns_of(low, node, 4 + 2 * normed)
    places = {"q": low.places[q], "k": low.places[k], "v": low.places[v]}
    args = {
        "q_out": out,
        "kv": Ref(kv),
        **places,
        **{f"{n}_stride": p.stride for n, p in places.items()},
        **{n: Ref(n) for n in ("positions", "sequences")},
        "tables": Ref(tables_name(group)),
        "turns": turns,
        "q_weight": low.vector(node.inputs[4]) if normed else NONE,
        "k_weight": low.vector(node.inputs[5]) if normed else NONE,
        "max_pages": max_pages(low.limits),
        "scale": float(str(attrs["scale"])),
        "eps": float(str(attrs["eps"])),
    }
    low.step(
        rope.rope_store,
        node,
        low.each_row(node),
        out,
        args,
        n_heads=n_heads,
        n_kv=n_kv,
        head_dim=head_dim,
        dims=attrs["dims"],
        pairs=attrs["pairs"],
        normed=normed,
        **types_of(low),
    )
    if low.limits.moves:
        lower_moves(low, node, group, turns)


def moves_inputs(low: Lowering) -> list[tuple[str, int]]:
    """The inputs of moves, and how many numbers they have at most."""
    n = max_pages(low.limits)
    sizes = (n, n * pages.PAGE, n * pages.PAGE)
    groups = range(len(low.caches)) if low.limits.moves else ()
    return [pair for i in groups for pair in zip(moves_names(i), sizes, strict=True)]


def lower_moves(low: Lowering, node: Node, group: int, turns: Ref) -> None:
    """The slots of a layer are moved, in runs that do nothing else."""
    n_kv, head_dim = int(node.inputs[1].shape[1]), int(node.inputs[1].shape[2])
    recipe = low.weights[turns.buffer]
    assert isinstance(recipe, Turns)
    args = {
        "kv": Ref(kv_name(node)),
        **dict(zip(("targets", "sources", "shifts"), map(Ref, moves_names(group)), strict=True)),
        "turns": turns,
        "by": 1.0 / recipe.scaling.magnitude,
    }
    constants = {"n_kv": n_kv, "head_dim": head_dim, "dims": node["dims"], "pairs": node["pairs"]}
    low.step(
        move.move_slots,
        node,
        Count(n_kv, moved_name(group)),
        kv_name(node),
        args,
        note=f"layer {node.layer}: move",
        **constants,
        **types_of(low),
    )


def types_of(low: Lowering) -> dict[str, Any]:
    """The kernels' constant for what K and V are kept in; f16 is what they do without."""
    types = low.limits.cache_types
    return {} if types == (F16, F16) else {"types": types}


def kv_name(node: Node) -> str:
    return f"kv.{node['cache']}"


def caches_of(graph: Graph, limits: Limits) -> tuple[Caches, ...]:
    """Layers by their windows, in the order of the layers."""
    layers: dict[int | None, list[str]] = {}
    for node in graph.nodes:
        if node.op == "attend":
            window = node["window"]
            assert window is None or isinstance(window, int)
            layers.setdefault(window, []).append(kv_name(node))
    return tuple(Caches(w, group_pages(limits, w), tuple(names)) for w, names in layers.items())


def group_of(low: Lowering, node: Node) -> tuple[int, Caches]:
    """The cache group of an attention's node, and its number."""
    name = kv_name(node)
    return next((i, c) for i, c in enumerate(low.caches) if name in c.buffers)


def turns_of(low: Lowering, node: Node, n_before: int) -> Ref:
    """The table of cosines and sines, shared by all layers that turn alike."""
    names = ("scale", "ext_factor", "attn_factor", "beta_fast", "beta_slow", "orig_context")
    scaling = Scaling(**{n: node.attrs[f"rope_{n}"] for n in names if f"rope_{n}" in node.attrs})  # pyright: ignore
    factors = node.inputs[n_before].name if len(node.inputs) > n_before else None
    recipe = Turns(
        low.limits.context, int(str(node["dims"])), float(str(node["theta"])), scaling, factors
    )
    known = next((name for name, weight in low.weights.items() if weight == recipe), None)
    return low.weight(known or f"turns.{len(low.weights)}", recipe)


@lowers("attend")
def lower_attend(low: Lowering, node: Node) -> None:
    """One step over whole tiles; where the past may be long, two more that share it in segments.
    Which of them have tiles is said at each run: see CompiledModel.
    """
    n_heads, head_dim = (int(d) for d in node.inputs[0].shape[1:])
    n_kv, out = int(str(node["n_kv"])), low.new(node)
    per_kv, target = n_heads // n_kv, low.target
    shape = attention.group_shape(per_kv, target.bits, target.registers, low.tiles)
    constants: dict[str, Any] = {
        "n_kv": n_kv,
        "per_kv": per_kv,
        "head_dim": head_dim,
        "window": node["window"],
        "softcap": node["softcap"],
        **types_of(low),
        **shape,
    }
    low.attention = attention.Heads(**constants)  # pyright: ignore[reportArgumentType]
    n_bytes = attention.scratch_bytes(low.attention, low.limits.max_batch, low.limits.context)
    known = low.buffers.get("attention")
    scratch = low.buffer("attention", max(n_bytes, known.bytes if known else 0), "scratch")
    every = {
        "y": out,
        "scratch": Ref(scratch),
        "q": low.places[node.inputs[0]],
        "kv": Ref(kv_name(node)),
        **{n: Ref(n) for n in ("positions", "groups")},
        "tables": Ref(tables_name(group_of(low, node)[0])),
        "n_groups": "groups",
        "together": "together",
        "max_pages": max_pages(low.limits),
        "y_stride": out.stride,
    }
    may_split = node["window"] is None and n_segments(low.limits.context) > 1
    steps = [(attention.attend, "whole" if may_split else "groups", out)]
    if may_split:
        steps += [(attention.attend_part, "parts", scratch), (attention.merge_parts, "split", out)]
    for kernel, scalar, writes in steps:
        args = {name: every[name] for name in kernel.slots}
        per = 1 if kernel is attention.attend_part else n_kv
        low.step(kernel, node, Count(per, scalar), writes, args, **constants)
    if low.limits.weighs and node["window"] is None:
        name = f"{MASS}{node['cache']}"
        low.buffer(name, 4 * low.limits.n_pages * n_kv * pages.PAGE, "kv")
        every["mass"] = Ref(name)
        low.ready[scratch] = low.ready[out.buffer]  # attention leaves its sums there
        args = {slot: every[slot] for slot in mass.weigh_slots.slots}
        note = f"layer {node.layer}: weigh"
        low.step(mass.weigh_slots, node, Count(n_kv), name, args, note, **constants)
