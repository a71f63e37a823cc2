"""What other types than f16 for keys and values cost a model: teacher-forced on real text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel.compiler.model import CompiledModel, load_model
from satchel.engine.cache_loss import LIMIT, Types
from satchel.files.checkpoint import Checkpoint
from satchel.kernels.cache_types import CACHE_TYPES, F16
from satchel.measure.accuracy import Agreement, divergences, summary
from satchel.runtime.batch import MAX_WANTED, PAGE, Batch

REFERENCE = (F16, F16)
OTHERS = tuple(name for name in CACHE_TYPES if name != F16)
PAIRS: tuple[Types, ...] = (
    *((name, F16) for name in OTHERS),
    *((F16, name) for name in OTHERS),
    *((name, name) for name in OTHERS),
    ("int8", "int4"),
    ("int8", "int4-rot"),
)
"""What is measured unless types are named: each alone, both alike, and K in more bits than V."""

AT_ONCE = 4
"""Pairs beside one run of the reference: each takes memory."""


@dataclass(frozen=True)
class CacheLoss:
    """How far a pair of types is from f16."""

    types: Types
    kv_bytes: int  # of a token, all layers together
    found: Agreement

    @property
    def refused(self) -> bool:
        """Whether it is, unless it is forced."""
        return self.found.mean_kl > LIMIT

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        k, v = self.types
        return {
            "cache_type_k": k, "cache_type_v": v, "kv_bytes_per_token": self.kv_bytes,
            **asdict(self.found), "refused": self.refused,
        }  # fmt: skip


def measure_cache(
    checkpoint: Checkpoint,
    tokens: Sequence[int],
    pairs: Sequence[Types],
    *,
    context: int,
    threads: int | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> Iterator[CacheLoss]:
    """Each pair beside f16 on the same tokens, in contexts of at most `context`, each new. Reports
    the tokens done so far, of all pairs. Raises SatchelError as loading does.
    """
    ids, done = np.array(tokens, np.int32), 0
    n = min(context, len(ids))

    def load(types: Types) -> CompiledModel:
        return load_model(
            checkpoint, context=n, threads=threads, max_batch=MAX_WANTED, n_pages=-(-n // PAGE),
            cache_types=types,
        )  # fmt: skip

    for first in range(0, len(pairs), AT_ONCE):
        some = pairs[first : first + AT_ONCE]
        kl, same = np.empty((len(some), len(ids))), np.empty((len(some), len(ids)), bool)
        with ExitStack() as stack:
            reference, *others = [stack.enter_context(load(t)) for t in (REFERENCE, *some)]
            for rows, start, end in steps(len(ids), n):
                want = reference.run(batch_of(reference, ids[rows], start, end))
                for i, model in enumerate(others):
                    got = model.run(batch_of(model, ids[rows], start, end))
                    kl[i, rows], same[i, rows] = divergences(want, got)
                    done += end - start
                    progress(done)
            pages = [sum(group.page_bytes for group in model.groups) for model in others]
        for i, types in enumerate(some):
            yield CacheLoss(types, pages[i] // PAGE, summary(kl[i], same[i]))


def steps(n_tokens: int, context: int) -> Iterator[tuple[slice, int, int]]:
    """Which tokens to take, and the positions they begin and end at: as many as a step gives."""
    for begin in range(0, n_tokens, context):
        n = min(context, n_tokens - begin)
        for start in range(0, n, MAX_WANTED):
            end = min(start + MAX_WANTED, n)
            yield slice(begin + start, begin + end), start, end


def batch_of(model: CompiledModel, ids: NDArray[np.int32], start: int, end: int) -> Batch:
    """The tokens of positions start .. end of a sequence, all of whose logits are wanted."""
    pages = np.arange(-(-end // PAGE), dtype=np.int32)[None]
    n = end - start
    return Batch(
        tokens=ids,
        positions=np.arange(start, end, dtype=np.int32),
        sequences=np.zeros(n, np.int32),
        # a group with fewer pages than the context takes those in turn that its window has left
        tables=tuple(pages % group.n_pages for group in model.groups),
        wanted=np.arange(n, dtype=np.int32),
    )
