"""The memory that a model will take, read off the plan that would run it; and how to make it fit.

What is counted is what the system counts as this process's own and mapped memory once all of it has
been used: weights (the packed ones, and the file's table of embeddings), pages of the KV cache,
activations, and the process itself with Python, its libraries and the tokenizer, which is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from satchel.archs import trace
from satchel.base.errors import MemoryLimitError
from satchel.base.log import size
from satchel.base.options import options
from satchel.compiler.expose_states import expose_states
from satchel.compiler.limits import Limits
from satchel.compiler.lower import lower_graph
from satchel.compiler.model import MAX_BATCH, MAX_SEQUENCES, host_target
from satchel.compiler.packing import sizes_of
from satchel.compiler.pipeline import fuse
from satchel.compiler.weights import Matrix
from satchel.engine.budget import GROWTH_BYTES, room_in
from satchel.engine.cache_loss import LIMIT, cache_loss
from satchel.engine.pages import pages_for
from satchel.files.checkpoint import Checkpoint
from satchel.kernels.cache_types import F16
from satchel.machine.memory import resident_bytes
from satchel.runtime.batch import PAGE

PYTHON_BYTES = 64 << 20  # of a process, where the system does not tell
LEAST_CONTEXT = 512  # tokens; a model with less room is refused
SMALLER = "int8", "int8"  # what f16 may become where memory is short


@dataclass(frozen=True)
class Forecast:
    """In bytes, for a KV cache that has room for `parallel` sequences of the whole context.

    `kv_groups` are the parts of the KV cache, with how far back their layers see (None: all).
    `packing` is the most that is taken for a while when the weights are packed for this machine, at
    the first start of all.
    """

    context: int
    parallel: int
    cache_types: tuple[str, str]
    weights: int
    kv: int
    activations: int
    process: int
    packing: int
    kv_groups: tuple[tuple[int | None, int], ...]

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.process

    def check(self, memory: int) -> None:
        """Raises MemoryLimitError, with the numbers, for what takes more than `memory` bytes."""
        if self.total > room_in(memory):
            raise MemoryLimitError(
                f"the model needs {self} for a context of {self.context} tokens, and "
                f"{size(memory)} are allowed, of which 3 % are left alone"
            )

    def __str__(self) -> str:
        return (
            f"{size(self.total)}: weights {size(self.weights)}, KV cache {size(self.kv)}, "
            f"activations {size(self.activations)}, Python {size(self.process)}"
        )


class Ledger:
    """Forecasts for one model, whose tokenizer has been loaded by now."""

    def __init__(self, checkpoint: Checkpoint, process: int | None = None) -> None:
        """`process`: what the process itself takes; None: what it has now, without a model.

        Raises UnsupportedError and FileFormatError as loading would.
        """
        now = resident_bytes() if process is None else process
        self._process = (PYTHON_BYTES if now is None else now) + GROWTH_BYTES
        self._fused = fuse(expose_states(trace(checkpoint)))
        self._target = host_target(options().target)
        self._file_bytes = checkpoint.n_bytes
        self._checkpoint = checkpoint

    def forecast(
        self, context: int, parallel: int = 1, cache_types: tuple[str, str] = (F16, F16)
    ) -> Forecast:
        """For `parallel` sequences of `context` tokens."""
        n_pages = parallel * pages_for(context)
        limits = Limits(MAX_BATCH, context, n_pages, MAX_SEQUENCES, cache_types)
        lowered = lower_graph(self._fused, self._target, limits)
        plan, sizes = lowered.plan, sizes_of(lowered.plan, lowered.weights)
        groups = tuple(
            (cache.window, sum(plan.buffer(name).bytes for name in cache.buffers))
            for cache in lowered.caches
        )
        matrices = sum(w.bytes for w in lowered.weights.values() if isinstance(w, Matrix))
        return Forecast(
            context=context,
            parallel=parallel,
            cache_types=cache_types,
            weights=sizes.weights,
            kv=sizes.kv,
            activations=sizes.activations,
            process=self._process,
            packing=self._process + sizes.weights + min(matrices, self._file_bytes),
            kv_groups=groups,
        )

    def fit(
        self,
        memory: int,
        asked: Forecast,
        say: Callable[[str], None],
        *,
        context_is_given: bool = False,
    ) -> Forecast:
        """What was asked for, or what is nearest to it within `memory` bytes; `say` hears of every
        change. First fewer sequences of full length have room at a time; then keys and values
        become smaller, if they are f16 and the model is known to bear it; then the context, if the
        user did not give it, becomes shorter.

        Raises MemoryLimitError, with the numbers, where nothing fits.
        """
        found, room = asked, room_in(memory)
        for parallel in range(asked.parallel - 1, 0, -1):
            if found.total <= room:
                break
            found = self._changed(found, parallel=parallel)
        if found.total > room and asked.cache_types == (F16, F16) and self._bears_smaller():
            found = self._changed(found, cache_types=SMALLER)
        if found.total > room and not context_is_given:
            found = self._shortened(found, room)
        found.check(memory)
        for what, old, new in (
            ("sequences of full length have room at a time", asked.parallel, found.parallel),
            ("is the type of keys and values", asked.cache_types[0], found.cache_types[0]),
            ("tokens are the context", asked.context, found.context),
        ):
            if old != new:
                say(f"to fit into {size(memory)}, {new} {what}, not {old}")
        return found

    def _bears_smaller(self) -> bool:
        return cache_loss(self._checkpoint, SMALLER).mean_kl <= LIMIT

    def _changed(
        self,
        found: Forecast,
        context: int | None = None,
        parallel: int | None = None,
        cache_types: tuple[str, str] | None = None,
    ) -> Forecast:
        return self.forecast(
            context or found.context, parallel or found.parallel, cache_types or found.cache_types
        )

    def _shortened(self, found: Forecast, room: int) -> Forecast:
        """With the longest context that fits, in whole pages; the least there is if none does."""
        low = min(found.context, LEAST_CONTEXT)
        best, high = self._changed(found, context=low), found.context
        while high - low >= PAGE:
            middle = low + (high - low) // 2 // PAGE * PAGE or low + PAGE
            tried = self._changed(found, context=max(middle, low + PAGE))
            if tried.total <= room:
                best, low = tried, tried.context
            else:
                high = tried.context - 1
        return best
