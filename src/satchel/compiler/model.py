"""A model ready to run: its plan, weights, KV pages and workers, behind the little that the engine
asks for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from satchel.base.errors import OptionError
from satchel.base.options import options
from satchel.compiler.limits import (
    MASS,
    Limits,
    max_pages,
    moved_name,
    moves_names,
    scalars_of,
    tables_name,
)
from satchel.compiler.packing import PackedWeights, sizes_of
from satchel.compiler.plan_cache import Ready, find_ready, ready_key
from satchel.compiler.sources import plan_digest
from satchel.compiler.weights import Turns, Weight
from satchel.files.checkpoint import Checkpoint
from satchel.kernels.cache_types import F16
from satchel.kernels.groups import heads_together, n_segments, query_groups
from satchel.lang.target import Target, choose_target, target_named
from satchel.machine import this_machine
from satchel.machine.tiles import Tiles
from satchel.machine.tuned import read_tuned, tiles_of
from satchel.runtime.batch import MAX_WANTED, PAGE, Batch, CacheGroup, Moves, Sizes
from satchel.runtime.executor import Executor, Profile
from satchel.runtime.kv import GroupMemory
from satchel.runtime.link import link_all
from satchel.runtime.memory import Memory
from satchel.runtime.objects import ObjectCache, object_key
from satchel.runtime.placement import place, spread_memory

if TYPE_CHECKING:
    from satchel.compiler.lowering import Lowered
    from satchel.graph.graph import Graph

Weights: TypeAlias = Mapping[str, Weight]
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


def without_and_with_turns(weights: Weights) -> tuple[Weights, Weights]:
    """Packed apart, as the turns alone depend on the context: another one packs nothing anew."""
    turns = {name: w for name, w in weights.items() if isinstance(w, Turns)}
    return {name: w for name, w in weights.items() if name not in turns}, turns


class CompiledModel:
    """Implements runtime.batch.Model."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        ready: Ready,
        code: Mapping[str, bytes],
        target: Target,
        limits: Limits,
        tiles: Tiles,
        threads: int,
        objects: ObjectCache,
        cache: Path | None,
    ) -> None:
        """`code`: the objects of the plan's kernels; `cache`: where packed weights are kept, if
        anywhere.
        """
        self.checkpoint, self.plan, self.target = checkpoint, ready.plan, target
        self._limits, self.tiles = limits, tiles
        self._code = link_all(code, ready.plan.kernels)
        self._recipes = ready.weights
        self._packed = tuple(
            PackedWeights(checkpoint, weights, cache, target, objects)
            for weights in without_and_with_turns(ready.weights)
        )
        self._memories = {
            b.name: Memory(b.bytes, huge=b.kind != "kv")
            for b in self.plan.buffers
            if b.kind in ("kv", "input", "output", "scratch")
        }
        self._memories["arena"] = Memory(self.plan.bytes_of("arena"))
        addresses = {name: m.address for name, m in self._memories.items()}
        for packed in self._packed:
            addresses |= packed.addresses
        self._inputs = {
            b.name: self._memories[b.name].array(np.int32, b.bytes // 4)
            for b in self.plan.buffers
            if b.kind == "input"
        }
        self._kv = [
            GroupMemory(c.window, c.n_pages, [self._memories[name] for name in c.buffers])
            for c in ready.caches
        ]
        self._tables = [
            self._inputs[tables_name(i)].reshape(-1, max_pages(limits))
            for i in range(len(self._kv))
        ]
        masses = [name for name in self._memories if name.startswith(MASS)]
        n = limits.n_pages
        self._masses = [self._output(name, n).reshape(n, -1, PAGE) for name in masses]
        self._unmoved = dict.fromkeys(map(moved_name, range(limits.moves * len(self._kv))), 0)
        self._next = [self._inputs[name].data for name in ("tokens", "positions")]
        self._counts: dict[str, int] = {}
        self._scalars: dict[str, int] = {}
        self._logits = self._output("logits", MAX_WANTED)
        self._maxima = self._output("maxima", MAX_WANTED)
        ranked, greatest = (self._output(name, MAX_WANTED) for name in ("ranked", "greatest"))
        self._ranked = ranked.view(np.int32), greatest
        self._states = self._output("states", limits.max_batch)[:, : ready.state_dim]
        self._n_kv, self._group_tokens = ready.n_kv, ready.group_tokens
        self._vocab, self._addresses, self._objects = ready.vocab_size, addresses, objects
        self.executor = self.executor_for(threads)

    def _output(self, name: str, rows: int) -> NDArray[np.float32]:
        """A buffer that the plan fills, of so many rows."""
        size = self.plan.buffer(name).bytes // 4
        return self._memories[name].array(np.float32, size).reshape(rows, -1)

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
    def fingerprint(self) -> str:
        features = " ".join(sorted(self.target.features))
        layout = replace(self._limits, max_batch=0, context=0, n_pages=0, max_sequences=0)
        return object_key(
            "kv",
            plan_digest(),
            self.checkpoint.fingerprint,
            self.target.name,
            features,
            repr(layout),
        )

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        return tuple(memory.group for memory in self._kv)

    def copy_page(self, group: int, source: int, target: int) -> None:
        self._kv[group].copy(source, target)

    def discard_pages(self, group: int, pages: Sequence[int]) -> None:
        self._kv[group].discard(pages)

    def read_page(self, group: int, page: int) -> bytes:
        return self._kv[group].read(page)

    def write_page(self, group: int, page: int, data: bytes) -> None:
        self._kv[group].write(page, data)

    @property
    def sizes(self) -> Sizes:
        return sizes_of(self.plan, self._recipes)

    @property
    def maxima(self) -> NDArray[np.float32]:
        return self._maxima

    @property
    def ranked(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self._ranked

    @property
    def states(self) -> NDArray[np.float32]:
        return self._states

    @property
    def cache_types(self) -> tuple[str, str]:
        """What K and V are kept in."""
        return self._limits.cache_types

    @property
    def threads(self) -> int:
        return self.executor.threads

    @cached_property
    def graph(self) -> Graph:
        """As the architecture traces it; made when asked for, as a warm start needs none."""
        from satchel.archs import trace

        return trace(self.checkpoint)

    @cached_property
    def lowered(self) -> Lowered:
        """The plan with its kernels at every stage; made when asked for."""
        from satchel.compiler.pipeline import compile_graph

        return compile_graph(self.graph, self.target, self._limits, self.tiles)

    @property
    def packed_files(self) -> tuple[Path, ...]:
        """The cache's files of the packed weights; none where no cache is used."""
        return tuple(packed.path for packed in self._packed if packed.path is not None)

    def executor_for(self, threads: int) -> Executor:
        """One more executor of this model, with workers of its own; whoever asks closes it."""
        return Executor(self.plan, self._code, self._addresses, threads, self._objects)

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """See runtime.batch.Model. Raises OptionError for a batch that is larger than the plan has
        room for.
        """
        self.start(batch)
        return self._logits[: len(batch.wanted), : self._vocab]

    def run_again(self, tokens: Sequence[int]) -> None:
        """See runtime.batch.Model."""
        inputs, positions = self._next  # no arrays, as numpy's code is not in the caches now
        for at, token in enumerate(tokens):
            inputs[at] = token
            positions[at] += 1
        self.executor.run(self._scalars)

    def move(self, moves: Sequence[Moves]) -> None:
        """See runtime.batch.Model."""
        scalars = dict.fromkeys(self.plan.scalars, 0)
        for group, one in enumerate(moves):
            arrays = (one.targets, one.sources, one.shifts)
            for name, array in zip(moves_names(group), arrays, strict=True):
                self._inputs[name][: array.size] = array.reshape(-1)
            scalars[moved_name(group)] = len(one.targets)
        self.executor.run(scalars)
        if self._masses:
            self._move_masses(moves)

    def mass(self, pages: Sequence[int]) -> NDArray[np.float32]:
        """See runtime.batch.Model."""
        total = np.zeros((len(pages), PAGE), np.float32)
        for masses in self._masses:
            total += masses[list(pages)].sum(axis=1)
        return total.reshape(-1)

    def _move_masses(self, moves: Sequence[Moves]) -> None:
        windows = [memory.group.window for memory in self._kv]
        one = moves[windows.index(None)]
        held = one.sources >= 0
        page, slot = np.nonzero(held)
        source = one.sources[held]
        for masses in self._masses:
            masses[one.targets[page], :, slot] = masses[source // PAGE, :, source % PAGE]

    def start(self, batch: Batch, profile: bool = False) -> Profile | None:
        """Run a step; with `profile`, say what took how long."""
        self._begin(batch)
        return self.executor.run(self._scalars, profile)

    def _begin(self, batch: Batch) -> None:
        """Write all that a step is given. Raises OptionError where there is no room for it."""
        n, limits = batch.n_tokens, self._limits
        if (
            n > limits.max_batch
            or len(batch.wanted) > MAX_WANTED
            or len(batch.tables[0]) > limits.max_sequences
        ):
            raise OptionError(
                f"a step of {n} tokens, {len(batch.tables[0])} sequences and "
                f"{len(batch.wanted)} rows of logits is "
                f"too large: at most {limits.max_batch}, {limits.max_sequences} and {MAX_WANTED}"
            )
        inputs = self._inputs
        for name in ("tokens", "positions", "sequences"):
            inputs[name][:n] = getattr(batch, name)
        inputs["wanted"][: len(batch.wanted)] = batch.wanted
        n_embedded = 0 if batch.embedded is None else len(batch.embedded)
        if batch.embedded is not None:
            inputs["embedded"][:n_embedded] = batch.embedded
        for own, given in zip(self._tables, batch.tables, strict=True):
            n_sequences, width = given.shape
            own[:n_sequences, :width] = given[:, : own.shape[1]]
        rows = {"tokens": n, "wanted": len(batch.wanted), "embedded": n_embedded, **self._unmoved}
        counts = {**rows, **self._attention(batch)}
        if counts != self._counts:  # they seldom differ from one decoded token to the next
            self._counts, self._scalars = counts, scalars_of(self.plan, counts)

    def _attention(self, batch: Batch) -> dict[str, int]:
        """Write the batch's groups of queries; their number, and how their tiles are taken: whole,
        or where they are few and see far, in parts that are merged.
        """
        groups = query_groups(batch.sequences, batch.positions, self._group_tokens)
        self._inputs["groups"][: groups.size] = groups.reshape(-1)
        n, until = len(groups), _until(batch)
        together = heads_together(n, self._n_kv, until, self.threads)
        if not together:
            return {"groups": n, "whole": n, "parts": 0, "split": 0, "together": 1}
        parts = n * n_segments(until) * self._n_kv // together
        return {"groups": n, "whole": 0, "parts": parts, "split": n, "together": together}

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


def _until(batch: Batch) -> int:
    """How many positions the furthest token sees."""
    positions = batch.positions
    return 1 + int(positions.item(0) if len(positions) == 1 else positions.max())


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
    cache_types: tuple[str, str] = (F16, F16),
    moves: bool = False,
    weighs: bool = False,
    tiles: Tiles | None = None,
) -> CompiledModel:
    """Compile a checkpoint for this machine, or find it compiled, and make it ready to run.

    `context`: positions of a sequence; `n_pages`: pages of KV in layers without a window, by
    default enough for two sequences of full length; `threads`: None takes what was measured to be
    best here (`satchel tune`), or what the machine suggests; `cache`: None for the user's own;
    `pack_cache`: False keeps the packed weights in memory alone; `cache_types`: of K and V, see
    kernels.cache_types; `moves`, `weighs`: whether slots can be moved, and their `mass` is known;
    `tiles`: None takes what was measured to be best here, too.
    Raises SatchelError of every kind.
    """
    settings = options()
    n_pages = n_pages or 2 * -(-context // PAGE)
    limits = Limits(max_batch, context, n_pages, MAX_SEQUENCES, cache_types, moves, weighs)
    cache = cache or settings.cache_dir
    machine = this_machine()
    tuned = read_tuned(settings.cache_dir, machine)
    workers = threads or settings.threads or (tuned.threads if tuned else machine.default_threads)
    chosen, objects = host_target(target or settings.target), ObjectCache(cache)
    tiles = tiles or tiles_of(tuned, chosen.name)
    key = ready_key(checkpoint, chosen, limits, tiles)
    found = find_ready(key, objects)
    if found is None:
        # imported here, as a warm start needs no kernel's source
        from satchel.compiler.pipeline import prepare

        ready, code = prepare(checkpoint, chosen, limits, objects, tiles)
        objects.store(key, str(ready).encode())
    else:
        ready, code = found
    packs = cache if pack_cache else None
    with spread_memory(place(machine, workers).nodes):
        return CompiledModel(
            checkpoint, ready, code, chosen, limits, tiles, workers, objects, packs
        )
