"""How much memory a model will need, read off the plan that would run it."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.archs import trace
from satchel.base.options import options
from satchel.compiler.lowering import Limits
from satchel.compiler.model import MAX_BATCH, MAX_SEQUENCES, host_target
from satchel.compiler.pipeline import compile_graph
from satchel.files.checkpoint import Checkpoint
from satchel.kernels.cache_types import F16
from satchel.runtime.batch import PAGE


@dataclass(frozen=True)
class Forecast:
    """In bytes. `weights` are packed for this machine; `kv` holds one sequence of the context."""

    context: int
    weights: int
    kv: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations


def forecast(
    checkpoint: Checkpoint, context: int, cache_types: tuple[str, str] = (F16, F16)
) -> Forecast:
    """The memory for one sequence of `context` tokens. Raises SatchelError as loading would."""
    limits = Limits(MAX_BATCH, context, -(-context // PAGE), MAX_SEQUENCES, cache_types)
    plan = compile_graph(trace(checkpoint), host_target(options().target), limits).plan
    sizes: dict[str, int] = {}
    for buffer in plan.buffers:
        if buffer.kind != "arena":
            sizes[buffer.kind] = sizes.get(buffer.kind, 0) + buffer.bytes
    weights, kv = sizes.pop("weight", 0), sizes.pop("kv", 0)
    return Forecast(context, weights, kv, plan.bytes_of("arena") + sum(sizes.values()))
