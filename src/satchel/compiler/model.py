"""A model ready to run: its plan, weights, KV pages and workers, behind the little that the engine
asks for.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from satchel.archs import trace
from satchel.base.errors import OptionError
from satchel.base.options import options
from satchel.compiler.lowering import Limits, Lowered, max_pages, scalars_of
from satchel.compiler.packing import PackedWeights
from satchel.compiler.pipeline import compile_graph, object_request
from satchel.files.checkpoint import Checkpoint
from satchel.graph.graph import Graph
from satchel.kernels.attention import is_worth_splitting, n_segments, query_groups
from satchel.lang.target import Target, choose_target, target_named
from satchel.machine import this_machine
from satchel.runtime.batch import MAX_WANTED, PAGE, Batch
from satchel.runtime.executor import Executor, Profile
from satchel.runtime.link import link_all
from satchel.runtime.memory import Memory
from satchel.runtime.objects import ObjectCache, build_objects

MAX_BATCH = 512
MAX_SEQUENCES = 64


def host_target(name: str | None = None) -> Target:
    """The best target of this machine, or the named one where this machine can run it. Raises
    OptionError.
    """
    machine = this_machine()
    best = choose_target(machine.isa, machine.features)
    if name is None:
        return best
    chosen = target_named(name)
    if not chosen.features <= best.features or chosen.triple != best.triple:
        missing = ", ".join(sorted(chosen.features - best.features)) or chosen.triple
        raise OptionError(
            f"target {name} can't run here, as this CPU lacks {missing}; "
            f"the best that runs is {best.name}"
        )
    return chosen


class CompiledModel:
    """Implements runtime.batch.Model."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        graph: Graph,
        lowered: Lowered,
        limits: Limits,
        threads: int,
        cache: Path | None,
        pack_cache: bool = True,
    ) -> None:
        self.checkpoint, self.graph, self.lowered, self._limits = checkpoint, graph, lowered, limits
        objects = ObjectCache(cache)
        requests = {name: object_request(build) for name, build in lowered.builds.items()}
        made = build_objects(requests.values(), objects, os.cpu_count() or 1)
        kernels = {name: request.key for name, request in requests.items()}
        self.plan = replace(lowered.plan, kernels=kernels)
        self._code = link_all(made, kernels)
        self._weights = PackedWeights(
            checkpoint, lowered.weights, cache if pack_cache else None, self.target, objects
        )
        self._memories = {
            b.name: Memory(b.bytes, huge=b.kind != "kv")
            for b in self.plan.buffers
            if b.kind in ("kv", "input", "output", "scratch")
        }
        self._memories["arena"] = Memory(self.plan.bytes_of("arena"))
        addresses = self._weights.addresses | {
            name: m.address for name, m in self._memories.items()
        }
        self._inputs = {
            name: self._memories[name].array(np.int32, self._memories[name].n_bytes // 4)
            for name in ("tokens", "positions", "sequences", "tables", "wanted", "groups")
        }
        self._vocab = int(graph.outputs[0].shape[-1])
        row = self.plan.buffer("logits").bytes // 4 // MAX_WANTED
        self._logits = (
            self._memories["logits"].array(np.float32, row * MAX_WANTED).reshape(MAX_WANTED, row)
        )
        self._heads = lowered.attention
        self.executor = Executor(self.plan, self._code, addresses, threads, objects)

    @property
    def vocab_size(self) -> int:
        return self._vocab

    @property
    def context_length(self) -> int:
        return self._limits.context

    @property
    def max_batch(self) -> int:
        return self._limits.max_batch

    @property
    def n_pages(self) -> int:
        return self._limits.n_pages

    @property
    def page_bytes(self) -> int:
        return self.plan.bytes_of("kv") // self._limits.n_pages if self._limits.n_pages else 0

    @property
    def threads(self) -> int:
        return self.executor.threads

    @property
    def target(self) -> Target:
        return next(iter(self.lowered.builds.values())).target

    @property
    def packed_file(self) -> Path | None:
        """The cache's file of the packed weights; None where no cache is used."""
        return self._weights.path

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """See runtime.batch.Model. Raises OptionError for a batch that is larger than the plan has
        room for.
        """
        self.start(batch)
        return self._logits[: len(batch.wanted), : self._vocab]

    def start(self, batch: Batch, profile: bool = False) -> Profile | None:
        """Run a step; with `profile`, say what took how long."""
        n, limits = batch.n_tokens, self._limits
        if (
            n > limits.max_batch
            or len(batch.wanted) > MAX_WANTED
            or len(batch.tables) > limits.max_sequences
        ):
            raise OptionError(
                f"a step of {n} tokens, {len(batch.tables)} sequences and "
                f"{len(batch.wanted)} rows of logits is "
                f"too large: at most {limits.max_batch}, {limits.max_sequences} and {MAX_WANTED}"
            )
        inputs = self._inputs
        for name in ("tokens", "positions", "sequences"):
            inputs[name][:n] = getattr(batch, name)
        inputs["wanted"][: len(batch.wanted)] = batch.wanted
        width = max_pages(limits)
        tables = inputs["tables"].reshape(-1, width)
        tables[: len(batch.tables), : batch.tables.shape[1]] = batch.tables[:, :width]
        counts = {"tokens": n, "wanted": len(batch.wanted), **self._attention(batch)}
        return self.executor.run(scalars_of(self.plan, counts), profile)

    def _attention(self, batch: Batch) -> dict[str, int]:
        """Write the batch's groups of queries; their number, and how their tiles are taken: whole,
        or where they are few and see far, in parts that are merged.
        """
        heads = self._heads
        groups = query_groups(batch.sequences, batch.positions, heads.group_tokens)
        self._inputs["groups"][: groups.size] = groups.reshape(-1)
        n, until = len(groups), int(batch.positions.max()) + 1
        split = is_worth_splitting(n, heads.n_kv, until, self.threads)
        parts = n * n_segments(until) if split else 0
        return {"groups": n, "whole": 0 if split else n, "parts": parts, "split": n if split else 0}

    def close(self) -> None:
        self.executor.close()

    def __enter__(self) -> CompiledModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def load_model(
    checkpoint: Checkpoint,
    *,
    context: int = 4096,
    threads: int | None = None,
    max_batch: int = MAX_BATCH,
    n_pages: int | None = None,
    target: str | None = None,
    cache: Path | None = None,
    pack_cache: bool = True,
) -> CompiledModel:
    """Compile a checkpoint for this machine, or find it compiled, and make it ready to run.

    `context`: positions of a sequence; `n_pages`: pages of KV, by default enough for two
    sequences of full length; `threads`: None lets the machine choose; `cache`: None for the
    user's own; `pack_cache`: False keeps the packed weights in memory alone. Raises SatchelError
    of every kind.
    """
    settings = options()
    limits = Limits(max_batch, context, n_pages or 2 * -(-context // PAGE), MAX_SEQUENCES)
    graph = trace(checkpoint)
    lowered = compile_graph(graph, host_target(target or settings.target), limits)
    workers = threads or settings.threads or this_machine().default_threads
    cache = cache or settings.cache_dir
    return CompiledModel(checkpoint, graph, lowered, limits, workers, cache, pack_cache)
