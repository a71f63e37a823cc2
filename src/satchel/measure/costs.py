"""What each step of a plan has to read and to multiply, in one run of it."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.compiler.model import CompiledModel
from satchel.compiler.weights import FileRows, Matrix, Turns, Vector, Weight
from satchel.formats.packed import Packed, packed
from satchel.measure.work import Attention, work_of
from satchel.runtime.batch import MAX_WANTED, Batch
from satchel.runtime.plan import Ref, Scalar, Step


@dataclass(frozen=True)
class Cost:
    """Bytes of weights and KV cache, which come from memory; bytes of activations, which other
    steps have just left in the caches; multiply-adds of 8-bit codes, and of floats."""

    memory_bytes: int = 0
    cache_bytes: int = 0
    code_mads: int = 0
    float_mads: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.memory_bytes + other.memory_bytes,
            self.cache_bytes + other.cache_bytes,
            self.code_mads + other.code_mads,
            self.float_mads + other.float_mads,
        )


class Costs:
    """Of a model's steps, in runs of one sequence."""

    def __init__(self, model: CompiledModel) -> None:
        self._weights = model.lowered.weights
        self._vocab = {name: int(w.shape[0]) for name, w in model.graph.weights.items()}
        self._attention = work_of(model.graph, model.lowered).attention
        self._buffers = {buffer.name: buffer for buffer in model.plan.buffers}
        self._capacity = {  # rows of each buffer, by the step that writes it
            step.args[0].buffer: MAX_WANTED if _rows_of(step) == "wanted" else model.max_batch
            for step in model.plan.steps
            if isinstance(step.args[0], Ref)
        }

    def of(self, step: Step, batch: Batch) -> Cost:
        """What the step costs in a run of this batch, whose tokens follow one another."""
        n_embedded = 0 if batch.embedded is None else len(batch.embedded)
        counts = {"tokens": batch.n_tokens, "wanted": len(batch.wanted), "embedded": n_embedded}
        n = counts[_rows_of(step)]
        total = Cost()
        for name in sorted({arg.buffer for arg in step.args if isinstance(arg, Ref)}):
            buffer = self._buffers[name]
            if name in self._weights:
                total += self._of_weight(self._weights[name], n)
            elif buffer.kind in ("arena", "output") and name in self._capacity:
                total += Cost(cache_bytes=buffer.bytes // self._capacity[name] * n)
            elif buffer.kind == "kv" and step.note.endswith("attend"):
                total += self._of_attention(self._attention[name], batch)
        return total

    def _of_weight(self, weight: Weight, n: int) -> Cost:
        match weight:
            case Matrix():
                mads = sum(weight.rows) * weight.columns * n
                if isinstance(packed(weight.format), Packed):
                    return Cost(memory_bytes=weight.bytes, code_mads=mads)
                return Cost(memory_bytes=weight.bytes, float_mads=mads)
            case FileRows():
                return Cost(memory_bytes=weight.bytes // self._vocab[weight.tensor] * n)
            case Turns():
                return Cost(cache_bytes=weight.bytes // weight.positions * n)
            case Vector():
                return Cost(cache_bytes=weight.bytes)

    def _of_attention(self, layer: Attention, batch: Batch) -> Cost:
        """Each key and value comes from memory once, whatever the number of tokens."""
        seen = [layer.seen(int(position)) for position in batch.positions]
        n_read = int(batch.positions[-1]) - int(batch.positions[0]) + seen[0]
        mads = 2 * layer.heads_dim * sum(seen)
        return Cost(memory_bytes=layer.kv_bytes * n_read, float_mads=mads)


def _rows_of(step: Step) -> str:
    """Which rows a step computes: all tokens, or those that are wanted, or embedded."""
    names = {arg.name for arg in step.args if isinstance(arg, Scalar)} | {step.tiles.scalar}
    bases = {(name or "").partition("_by_")[0] for name in names}
    return next((base for base in ("wanted", "embedded") if base in bases), "tokens")
