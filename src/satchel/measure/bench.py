"""How fast a model runs here, beside what the machine's memory and multipliers would allow at that very moment."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from satchel.base.errors import OptionError
from satchel.compiler.model import CompiledModel
from satchel.compiler.weights import Matrix
from satchel.measure.limits import LimitMeter
from satchel.runtime.batch import PAGE, Batch


@dataclass(frozen=True)
class Result:
    """One test: medians over the repetitions. `limit_tokens_per_s`: by multiply-adds for prompts (pp), by bytes of weights
    read for single tokens (tg), both as measured in the same run."""

    model: str
    test: str
    threads: int
    tokens_per_s: float
    tokens_per_s_sd: float
    limit_tokens_per_s: float
    fraction_of_limit: float
    repetitions: int
    target: str
    read_bytes_per_s: float
    mads_per_s: float
    depth: int

    def as_json(self) -> dict[str, object]:
        return {k: round(v, 4) if isinstance(v, float) else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Work:
    """What one token costs: bytes of packed weights read, multiply-adds in the layers and in the head."""

    weight_bytes: int
    layer_mads: int
    head_mads: int


def work_of(model: CompiledModel) -> Work:
    """Counted from the plan's weights."""
    matrices = {n: w for n, w in model.lowered.weights.items() if isinstance(w, Matrix)}
    head = model.graph.outputs[0]
    while head.op != "linear":
        head = head.inputs[0]
    head_name = head.inputs[1].name
    mads = {n: sum(w.rows) * w.columns for n, w in matrices.items()}
    total = sum(mads.values())
    return Work(sum(w.bytes for w in matrices.values()), total - mads[head_name], mads[head_name])


class Bench:
    """Times prompts and single tokens of one sequence, whose tokens are arbitrary."""

    def __init__(self, model: CompiledModel) -> None:
        self.model = model
        self._table = np.arange(-(-model.context_length // PAGE), dtype=np.int32)[None, :]
        self._tokens = np.random.default_rng(0).integers(0, model.vocab_size, model.context_length).astype(np.int32)

    def step(self, start: int, n: int) -> None:
        """n tokens from position start on."""
        positions = np.arange(start, start + n, dtype=np.int32)
        wanted = np.array([n - 1], np.int32)
        self.model.run(Batch(self._tokens[positions], positions, np.zeros(n, np.int32), self._table, wanted))

    def fill(self, start: int, n: int) -> None:
        """A prompt of n tokens, in chunks."""
        for at in range(start, start + n, self.model.max_batch):
            self.step(at, min(self.model.max_batch, start + n - at))

    def prompt(self, n: int, depth: int = 0) -> float:
        """Tokens a second of a prompt of n tokens."""
        begin = time.perf_counter()
        self.fill(depth, n)
        return n / (time.perf_counter() - begin)

    def generate(self, n: int, depth: int = 0) -> float:
        """Tokens a second, one at a time."""
        begin = time.perf_counter()
        for i in range(depth, depth + n):
            self.step(i, 1)
        return n / (time.perf_counter() - begin)


def bench(
    model: CompiledModel, name: str, n_prompt: int, n_generate: int, repetitions: int = 5, depth: int = 0
) -> Iterator[Result]:
    """A Result for the prompt, one for the generation (either may be 0 tokens: left out).

    Raises OptionError where the context has no room for them.
    """
    if depth + max(n_prompt, n_generate) > model.context_length or min(n_prompt, n_generate, depth, repetitions - 1) < 0:
        raise OptionError(f"{n_prompt} and {n_generate} tokens at depth {depth} do not fit a context of {model.context_length}; "
                          "give -c a larger number")  # fmt: skip
    work, runner, meter = work_of(model), Bench(model), LimitMeter(model.threads)
    try:
        for kind, n in (("pp", n_prompt), ("tg", n_generate)):
            if n:
                time_one = runner.prompt if kind == "pp" else runner.generate
                runner.fill(0, depth)
                time_one(min(n, 16), depth)
                rates, reads, mads = [], [], []
                for _ in range(repetitions):
                    reads.append(meter.read_bytes_per_s())
                    mads.append(meter.mads_per_s())
                    rates.append(time_one(n, depth))
                limit = max(reads) / work.weight_bytes
                if kind == "pp":
                    limit = max(mads) * n / (work.layer_mads * n + work.head_mads)
                rate = statistics.median(rates)
                yield Result(
                    name, f"{kind}{n}" + (f" @ d{depth}" if depth else ""), model.threads, rate, statistics.pstdev(rates),
                    limit, rate / limit, repetitions, model.target.name, max(reads), max(mads), depth,
                )  # fmt: skip
    finally:
        meter.close()
