"""A layer seen at every stage on its way to machine code."""

from __future__ import annotations

from collections.abc import Iterator

from satchel.archs import trace
from satchel.base.errors import OptionError
from satchel.base.options import options
from satchel.compiler.limits import Limits
from satchel.compiler.model import MAX_BATCH, MAX_SEQUENCES, host_target
from satchel.compiler.pipeline import compile_graph, fuse
from satchel.files.checkpoint import Checkpoint
from satchel.machine import this_machine
from satchel.machine.tuned import read_tuned, tiles_of


def explain(
    checkpoint: Checkpoint, layer: int = 0, target: str | None = None
) -> Iterator[tuple[str, str]]:
    """(title, text) of the graph, the fused graph, the plan's steps, and each kernel's IR, LLVM and
    assembly.

    Raises OptionError for a layer that the model does not have, or a target that this machine
    can't run.
    """
    graph = trace(checkpoint)
    n_layers = 1 + max((node.layer for node in graph.nodes if node.layer is not None), default=-1)
    if not 0 <= layer < n_layers:
        raise OptionError(f"there is no layer {layer}: the model has layers 0 to {n_layers - 1}")
    yield f"graph, layer {layer}: what is computed", graph.text(layer)
    yield f"fused graph, layer {layer}: what is computed at once", fuse(graph).text(layer)
    limits, chosen = Limits(MAX_BATCH, 4096, 64, MAX_SEQUENCES), host_target(target)
    tuned = read_tuned(options().cache_dir, this_machine())
    lowered = compile_graph(graph, chosen, limits, tiles_of(tuned, chosen.name))
    steps = [step for step in lowered.plan.steps if step.note.startswith(f"layer {layer}:")]
    yield (
        f"plan, layer {layer}: kernel(arguments) * tiles",
        "".join(f"phase {s.phase}: {s}\n" for s in steps),
    )
    for name in dict.fromkeys(step.kernel for step in steps):
        build = lowered.builds[name]
        yield f"kernel {name}: as traced", str(build.traced)
        yield f"kernel {name}: lowered for {build.target.name}", str(build.lowered)
        yield f"kernel {name}: LLVM", build.llvm
        yield f"kernel {name}: assembly", build.assembly
