"""Speed: tokens per second of a prompt (pp) and of generation (tg), beside the machine's limits.

The limits are measured in the same run, between the tests, and the best of each counts: generation
can't be faster than reading the weights and the KV cache once a token, a prompt not faster than its
multiply-adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from satchel.base.errors import OptionError
from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import Checkpoint
from satchel.kernels.cache_types import F16
from satchel.measure.limits import LimitMeter
from satchel.measure.work import Work, work_of
from satchel.runtime.batch import PAGE, Batch

WARM_UP = 8  # tokens generated before anything is timed


@dataclass(frozen=True)
class Case:
    """A prompt of n tokens (pp), or n tokens generated one by one (tg), after `depth` others."""

    kind: Literal["pp", "tg"]
    n: int
    depth: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.n}" + (f" @ d{self.depth}" if self.depth else "")

    def limit(self, work: Work, read_bytes_per_s: float, mads_per_s: float) -> float:
        """Tokens a second that nothing can exceed on a machine like this."""
        if self.kind == "pp":
            return mads_per_s / work.prompt_mads(self.n)
        return read_bytes_per_s / work.generation_bytes(self.n, self.depth)


@dataclass(frozen=True)
class Result:
    """One case: the median of its runs, their standard deviation, and what would be possible."""

    model: str
    test: str
    depth: int
    threads: int
    repetitions: int
    tokens_per_s: float
    tokens_per_s_sd: float
    limit_tokens_per_s: float
    limited_by: str  # "read" or "multiply"
    read_bytes_per_s: float  # the best of the same run, as the next one
    mads_per_s: float
    target: str

    @property
    def fraction_of_limit(self) -> float:
        return self.tokens_per_s / self.limit_tokens_per_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"fraction_of_limit": round(self.fraction_of_limit, 4)}


class Runner:
    """Runs one sequence of arbitrary tokens through a model, and says how fast that was."""

    def __init__(self, model: CompiledModel) -> None:
        self.model = model
        draw = np.random.default_rng(0)
        self._tokens = draw.integers(0, model.vocab_size, model.context_length, dtype=np.int32)
        # a group with fewer pages than the context takes those in turn that its window has left
        pages = np.arange(-(-model.context_length // PAGE), dtype=np.int32)[None]
        self._tables = tuple(pages % group.n_pages for group in model.groups)

    def tokens(self, n: int) -> list[int]:
        """The first n tokens."""
        return self._tokens[:n].tolist()

    def batch(self, start: int, n: int, *, wanted: bool = True) -> Batch:
        """The n tokens from position `start` on; the logits of the last are wanted, or none."""
        return Batch(
            tokens=self._tokens[start : start + n],
            positions=np.arange(start, start + n, dtype=np.int32),
            sequences=np.zeros(n, np.int32),
            tables=tuple(table[:, : -(-(start + n) // PAGE)] for table in self._tables),
            wanted=np.array([n - 1] if wanted else [], np.int32),
        )

    def prompt(self, n: int, depth: int = 0) -> float:
        """Tokens a second of a prompt of n tokens, in runs as large as the model takes."""
        begin, end = time.perf_counter(), depth + n
        for start in range(depth, end, self.model.max_batch):
            size = min(self.model.max_batch, end - start)
            self.model.run(self.batch(start, size, wanted=start + size == end))
        return n / (time.perf_counter() - begin)

    def generate(self, n: int, depth: int = 0) -> float:
        """Tokens a second, one at a time, as the engine has them run: again, but for new pages."""
        begin = time.perf_counter()
        for position in range(depth, depth + n):
            if position == depth or position % PAGE == 0:
                self.model.run(self.batch(position, 1))
            else:
                self.model.run_again((self._tokens.item(position),))
        return n / (time.perf_counter() - begin)

    def fill(self, depth: int) -> None:
        """Put the first `depth` tokens into the KV cache, where the cases find them."""
        if depth:
            self.prompt(depth)

    def warm_up(self, depth: int = 0) -> None:
        """Touch all weights and buffers, and wake the workers."""
        room = self.model.context_length - depth
        self.prompt(min(self.model.max_batch, room), depth)
        self.generate(min(WARM_UP, room), depth)

    def time(self, case: Case) -> float:
        """Tokens a second of one run of a case, whose depth must be filled."""
        run = self.prompt if case.kind == "pp" else self.generate
        return run(case.n, case.depth)


def cases_of(n_prompt: int, n_generate: int, depth: int = 0) -> list[Case]:
    """Both cases, or the one that has any tokens. Raises OptionError when neither has."""
    both = [Case("pp", n_prompt, depth), Case("tg", n_generate, depth)]
    cases = [case for case in both if case.n]
    if not cases:
        raise OptionError("nothing to measure: -p and -n are both 0")
    return cases


def load_for(
    checkpoint: Checkpoint,
    cases: list[Case],
    threads: int | None,
    cache_types: tuple[str, str] = (F16, F16),
) -> CompiledModel:
    """The model, its context long enough. Raises SatchelError as loading does."""
    context = max(case.depth + case.n for case in cases)
    n_pages = -(-context // PAGE)
    return load_model(
        checkpoint, context=context, threads=threads, n_pages=n_pages, cache_types=cache_types
    )


def measure(
    model: CompiledModel, cases: list[Case], *, name: str, repetitions: int = 5
) -> list[Result]:
    """Runs all cases `repetitions` times, in turns with the limits."""
    with LimitMeter(model.threads) as meter:
        samples = _sample(Runner(model), meter, cases, repetitions)
    work = work_of(model.graph, model.lowered)
    read, mads = (max(samples[limit]) for limit in ("read", "multiply"))

    def result(case: Case) -> Result:
        speeds = samples[str(case)]
        return Result(
            model=name,
            test=str(case),
            depth=case.depth,
            threads=model.threads,
            repetitions=repetitions,
            tokens_per_s=round(statistics.median(speeds), 2),
            tokens_per_s_sd=round(statistics.stdev(speeds) if len(speeds) > 1 else 0.0, 2),
            limit_tokens_per_s=round(case.limit(work, read, mads), 2),
            limited_by="multiply" if case.kind == "pp" else "read",
            read_bytes_per_s=round(read),
            mads_per_s=round(mads),
            target=model.target.name,
        )

    return [result(case) for case in cases]


def _sample(
    runner: Runner, meter: LimitMeter, cases: list[Case], repetitions: int
) -> dict[str, list[float]]:
    """Tokens per second of the cases and both limits, a sample of each in turn."""
    timed: dict[str, Callable[[], float]] = {
        "read": meter.read_bytes_per_s,
        "multiply": meter.mads_per_s,
    }
    for case in cases:
        timed[str(case)] = lambda case=case: runner.time(case)
    depth = max(case.depth for case in cases)
    runner.fill(depth)
    runner.warm_up(depth)
    samples: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(repetitions):
        for name, sample in timed.items():
            samples[name].append(sample())
    return samples
