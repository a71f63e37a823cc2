"""Speed: tokens per second of a prompt (pp) and of generation (tg), beside the machine's limits.

The limits are measured in the same run, between the tests: generation can't be faster than reading
all weights once a token, a prompt not faster than its multiply-adds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import Checkpoint
from satchel.measure.limits import LimitMeter
from satchel.measure.work import Work, work_of
from satchel.runtime.batch import PAGE, Batch


@dataclass(frozen=True)
class Result:
    """One test: the median of its runs, their standard deviation, and what would be possible."""

    model: str
    test: str  # "pp512": a prompt of 512 tokens; "tg128": 128 tokens generated
    threads: int
    repetitions: int
    tokens_per_s: float
    tokens_per_s_sd: float
    limit_tokens_per_s: float
    limited_by: str  # "read" or "mads"
    limit: float  # bytes read, or multiply-adds, per second: the median of the same run

    @property
    def fraction_of_limit(self) -> float:
        return self.tokens_per_s / self.limit_tokens_per_s

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"fraction_of_limit": round(self.fraction_of_limit, 4)}


def measure(
    checkpoint: Checkpoint,
    *,
    name: str,
    n_prompt: int = 512,
    n_generate: int = 128,
    threads: int | None = None,
    repetitions: int = 5,
) -> Iterator[Result]:
    """Runs both tests `repetitions` times, in turns with the limits; then yields the results.

    Raises SatchelError as loading does.
    """
    context = max(n_prompt, n_generate, 1)
    with load_model(checkpoint, context=context, threads=threads) as model:
        meter = LimitMeter(model.threads)
        try:
            samples = _sample(model, meter, n_prompt, n_generate, repetitions)
        finally:
            meter.close()
        work = work_of(model.graph)

    def result(test: str, limited_by: str, work_per_token: float) -> Result:
        speeds, limit = samples[test], statistics.median(samples[limited_by])
        return Result(
            model=name,
            test=test,
            threads=model.threads,
            repetitions=repetitions,
            tokens_per_s=round(statistics.median(speeds), 2),
            tokens_per_s_sd=round(statistics.stdev(speeds) if len(speeds) > 1 else 0.0, 2),
            limit_tokens_per_s=round(limit / work_per_token, 2),
            limited_by=limited_by,
            limit=round(limit),
        )

    if n_prompt:
        yield result(f"pp{n_prompt}", "mads", _mads_per_prompt_token(work, n_prompt))
    if n_generate:
        yield result(f"tg{n_generate}", "read", work.weight_bytes)


def _mads_per_prompt_token(work: Work, n_prompt: int) -> float:
    return work.mads - work.head_mads * (1 - 1 / n_prompt)


def _sample(
    model: CompiledModel, meter: LimitMeter, n_prompt: int, n_generate: int, repetitions: int
) -> dict[str, list[float]]:
    """Tokens per second of the tests and both limits, a sample of each in turn."""
    tokens = np.random.default_rng(0).integers(0, model.vocab_size, model.context_length)
    prompt, ones = _prompt(model, tokens[:n_prompt]), _one_by_one(tokens[:n_generate])
    tests: dict[str, Callable[[], float]] = {
        "read": meter.read_bytes_per_s,
        "mads": meter.mads_per_s,
    }
    if n_prompt:
        tests[f"pp{n_prompt}"] = lambda: n_prompt / _seconds(model, prompt)
    if n_generate:
        tests[f"tg{n_generate}"] = lambda: n_generate / _seconds(model, ones)
    for warm_up in (prompt, ones[:8]):
        _seconds(model, warm_up)
    samples: dict[str, list[float]] = {test: [] for test in tests}
    for _ in range(repetitions):
        for test, sample in tests.items():
            samples[test].append(sample())
    return samples


def _seconds(model: CompiledModel, batches: list[Batch]) -> float:
    begin = time.perf_counter()
    for batch in batches:
        model.run(batch)
    return time.perf_counter() - begin


def _prompt(model: CompiledModel, tokens: np.ndarray[Any, Any]) -> list[Batch]:
    """The prompt in runs as large as the model takes, the last token's logits wanted."""
    starts = range(0, len(tokens), model.max_batch)
    return [
        _batch(tokens[start : start + model.max_batch], start, last=start == starts[-1])
        for start in starts
    ]


def _one_by_one(tokens: np.ndarray[Any, Any]) -> list[Batch]:
    return [_batch(tokens[i : i + 1], i, last=True) for i in range(len(tokens))]


def _batch(tokens: np.ndarray[Any, Any], start: int, *, last: bool) -> Batch:
    """Tokens of one sequence, which has the pages 0, 1, 2, ..."""
    n = len(tokens)
    return Batch(
        tokens=tokens.astype(np.int32),
        positions=np.arange(start, start + n, dtype=np.int32),
        sequences=np.zeros(n, np.int32),
        tables=np.arange(-(-(start + n) // PAGE), dtype=np.int32)[None],
        wanted=np.array([n - 1] if last else [], np.int32),
    )
