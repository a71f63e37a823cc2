"""The whole compiler in one look: checkpoint -> graph -> fused graph -> plan with its kernels."""

from __future__ import annotations

import os
from dataclasses import replace

from satchel.archs import trace
from satchel.compiler.expose_states import expose_states, states_of
from satchel.compiler.fuse_products import fuse_products
from satchel.compiler.fuse_small import fuse_small
from satchel.compiler.limits import Limits
from satchel.compiler.lower import lower_graph
from satchel.compiler.lowering import Lowered
from satchel.compiler.place_quantize import place_quantize
from satchel.compiler.plan_cache import Ready
from satchel.compiler.sources import source_digest
from satchel.files.checkpoint import Checkpoint
from satchel.graph.graph import Graph
from satchel.lang.kernel import Build
from satchel.lang.target import Target
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.runtime.objects import ObjectCache, Request, build_objects, object_key

PASSES = (fuse_products, fuse_small, place_quantize)


def fuse(graph: Graph) -> Graph:
    """The graph after all passes."""
    for run in PASSES:
        graph = run(graph)
    return graph


def compile_graph(graph: Graph, target: Target, limits: Limits, tiles: Tiles = DEFAULT) -> Lowered:
    """The plan of a graph as an arch traced it."""
    return lower_graph(fuse(expose_states(graph)), target, limits, tiles)


def prepare(
    checkpoint: Checkpoint,
    target: Target,
    limits: Limits,
    objects: ObjectCache,
    tiles: Tiles = DEFAULT,
) -> tuple[Ready, dict[str, bytes]]:
    """All that a model needs to run but its weights: what there is to know, and its kernels' code.

    Raises SatchelError for a model that can't be run.
    """
    graph = trace(checkpoint)
    lowered = compile_graph(graph, target, limits, tiles)
    requests = {name: object_request(build) for name, build in lowered.builds.items()}
    code = build_objects(requests.values(), objects, max(2, os.cpu_count() or 1))
    plan = replace(lowered.plan, kernels={name: r.key for name, r in requests.items()})
    heads, vocab_size = lowered.attention, int(graph.outputs[0].shape[-1])
    numbers = (heads.n_kv, heads.group_tokens, vocab_size, int(states_of(graph).shape[-1]))
    return Ready(plan, lowered.weights, lowered.caches, *numbers), code


def object_request(build: Build) -> Request:
    """A kernel's object: its key, known without tracing it, and how it is made."""
    target = build.target
    parts = (
        source_digest(),
        build.name,
        repr(build.constants),
        target.triple,
        target.cpu,
        target.llvm_features,
    )
    return Request(object_key(*parts), build.object)
