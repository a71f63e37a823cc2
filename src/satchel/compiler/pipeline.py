"""The whole compiler in one look: checkpoint -> graph -> fused graph -> plan with its kernels."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources

from satchel.compiler.fuse_products import fuse_products
from satchel.compiler.fuse_small import fuse_small
from satchel.compiler.lower import lower_graph
from satchel.compiler.lowering import Limits, Lowered
from satchel.compiler.place_quantize import place_quantize
from satchel.graph.graph import Graph
from satchel.lang.kernel import Build
from satchel.lang.target import Target
from satchel.runtime.objects import Request, object_key

PASSES = (fuse_products, fuse_small, place_quantize)


def fuse(graph: Graph) -> Graph:
    """The graph after all passes."""
    for run in PASSES:
        graph = run(graph)
    return graph


def compile_graph(graph: Graph, target: Target, limits: Limits) -> Lowered:
    """The plan of a graph as an arch traced it."""
    return lower_graph(fuse(graph), target, limits)


@cache
def source_digest() -> str:
    """A fingerprint of all source that decides what a kernel's machine code is."""
    digest = hashlib.sha256()
    for room in (
        "satchel.lang",
        "satchel.lang.rules",
        "satchel.lang.print",
        "satchel.kernels",
        "satchel.formats",
        "satchel.base",
    ):
        for file in sorted(resources.files(room).iterdir(), key=lambda f: f.name):
            if file.name.endswith(".py"):
                digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()


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
