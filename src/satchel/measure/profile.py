"""Where the time of a step goes: its kernels, each beside its own limit; waiting; Python."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, astuple, dataclass
from typing import TYPE_CHECKING, Any

from satchel.compiler.model import CompiledModel
from satchel.engine.engine import Engine
from satchel.engine.request import Generation
from satchel.engine.sampler import Sampler, SamplingParams
from satchel.measure.bench import Case, Runner
from satchel.measure.costs import Cost, Costs
from satchel.measure.limits import LimitMeter
from satchel.runtime.batch import Batch, CacheGroup, Moves, Sizes
from satchel.runtime.executor import Profile
from satchel.text import Detokenizer, Tokenizer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from satchel.engine.request import Delta

PROMPT_RUNS = 5
DECODE_RUNS = 41
ENGINE_RUNS = 64
ROOF_EVERY = 5
"""Runs between two measurements of the machine."""

SAMPLERS = {"greedy": SamplingParams(temperature=0), "sampled": SamplingParams(seed=1)}


@dataclass(frozen=True)
class Roofs:
    """What the machine can do, all threads together."""

    memory_bytes_per_s: float
    cache_bytes_per_s: float
    code_mads_per_s: float
    float_mads_per_s: float

    def seconds(self, cost: Cost) -> tuple[float, str]:
        """The least time that the cost can take, and what binds it."""
        memory = cost.memory_bytes / self.memory_bytes_per_s
        cache = cost.cache_bytes / self.cache_bytes_per_s
        multiply = cost.code_mads / self.code_mads_per_s + cost.float_mads / self.float_mads_per_s
        times = {"memory": memory, "cache": cache, "multiply": multiply}
        bound = max(times, key=lambda name: times[name])
        return max(memory + cache, multiply), bound


def measure_roofs(meter: LimitMeter) -> Roofs:
    """One sample of each."""
    return Roofs(
        meter.read_bytes_per_s(),
        meter.cache_bytes_per_s(),
        meter.mads_per_s(),
        meter.float_mads_per_s(),
    )


@dataclass(frozen=True)
class KernelTime:
    """One kernel's calls in a step. Bytes and multiply-adds are those that it can't do without."""

    test: str
    kernel: str
    calls: int
    ms: float  # of one thread: all threads' time, divided by their number
    share: float  # of the work of the step
    bytes: int
    mads: int
    gb_per_s: float
    gmads_per_s: float
    bound: str  # by "memory", "cache" or "multiply"
    fraction_of_limit: float


@dataclass(frozen=True)
class StepTime:
    """One step as its caller sees it, in ms. The threads work, or wait for each other."""

    test: str
    tokens: int
    depth: int
    threads: int
    ms: float
    work_ms: float
    waiting_ms: float
    python_ms: float
    limit_ms: float

    @property
    def python_share(self) -> float:
        return self.python_ms / self.ms


@dataclass(frozen=True)
class EngineTime:
    """A step of the engine that generates a token, and how much of it is Python."""

    sampler: str
    depth: int
    threads: int
    ms: float
    python_ms: float

    @property
    def python_share(self) -> float:
        return self.python_ms / self.ms


@dataclass(frozen=True)
class Report:
    """All that `profile_model` found: steps with their kernels, the engine's steps, the limits."""

    model: str
    steps: list[tuple[StepTime, list[KernelTime]]]
    engine: list[EngineTime]
    roofs: Roofs

    def lines(self) -> Iterator[dict[str, Any]]:
        """For JSON: an object for the limits, each step, each of its kernels, each sampler."""
        yield self._line("limits", self.roofs)
        for step, kernels in self.steps:
            yield self._line("step", step) | {"python_share": round(step.python_share, 5)}
            yield from (self._line("kernel", kernel) for kernel in kernels)
        for time_ in self.engine:
            yield self._line("engine", time_) | {"python_share": round(time_.python_share, 5)}

    def _line(self, kind: str, of: KernelTime | StepTime | EngineTime | Roofs) -> dict[str, Any]:
        rounded = {k: round(v, 5) if isinstance(v, float) else v for k, v in asdict(of).items()}
        return {"model": self.model, "kind": kind, **rounded}


def profile_cases(n_prompt: int, depth: int) -> list[Case]:
    """What the context must hold."""
    return [Case("pp", max(1, n_prompt), depth), Case("tg", ENGINE_RUNS + 2, depth)]


def profile_model(
    model: CompiledModel, tokenizer: Tokenizer, *, name: str, n_prompt: int = 512, depth: int = 0
) -> Report:
    """Profiles a chunk of a prompt, a token, and the engine around it.

    The context must hold `profile_cases`. A prompt of 0 tokens is left out.
    """
    with LimitMeter(model.threads) as meter:
        profiler = Profiler(model, meter, depth)
        steps = [profiler.prompt(n_prompt)] if n_prompt else []
        decode = profiler.decode()
        engine = profiler.engine(tokenizer, decode[0].python_ms)
        return Report(name, [*steps, decode], engine, profiler.roofs)


class Profiler:
    """Profiles a loaded model's steps, one sequence at a depth."""

    def __init__(self, model: CompiledModel, meter: LimitMeter, depth: int) -> None:
        self._model, self._meter, self._depth = model, meter, depth
        self._runner, self._costs = Runner(model), Costs(model)
        self._runner.fill(depth)
        self._runner.warm_up(depth)
        self._roofs: list[Roofs] = []

    @property
    def roofs(self) -> Roofs:
        """The best that the machine could do between the steps that were profiled until now."""
        samples = (astuple(roofs) for roofs in self._roofs)
        return Roofs(*map(max, zip(*samples, strict=True)))

    def prompt(self, n: int) -> tuple[StepTime, list[KernelTime]]:
        """A chunk of a prompt, of n tokens or as many as one step takes."""
        n = min(n, self._model.max_batch)
        return self._step(f"pp{n}", self._runner.batch(self._depth, n), PROMPT_RUNS)

    def decode(self) -> tuple[StepTime, list[KernelTime]]:
        """One token, straight from the model: no engine, no sampler."""
        return self._step("tg", self._runner.batch(self._depth, 1), DECODE_RUNS)

    def _step(self, test: str, batch: Batch, runs: int) -> tuple[StepTime, list[KernelTime]]:
        """The median step. Each run that is timed has a neighbour that is profiled: Python is what
        the one takes longer."""
        profiles: list[Profile] = []
        python_ms: list[float] = []
        for i in range(runs):
            if i % ROOF_EVERY == 0:
                self._roofs.append(measure_roofs(self._meter))
            self._model.run(batch)  # so that both come right after another run
            begin = time.perf_counter()
            self._model.run(batch)
            wall_ms = 1e3 * (time.perf_counter() - begin)
            profile = self._model.start(batch, profile=True)
            assert profile is not None
            profiles.append(profile)
            python_ms.append(wall_ms - profile.run_ns / 1e6)
        middle = sorted(profiles, key=lambda p: p.run_ns)[runs // 2]
        step = self._times(test, batch, middle, max(0.0, statistics.median(python_ms)))
        return step, self._kernels(test, batch, middle)

    def _times(self, test: str, batch: Batch, profile: Profile, python_ms: float) -> StepTime:
        run_ms = profile.run_ns / 1e6
        work_ms = float((profile.end_ns - profile.begin_ns).sum()) / 1e6 / self._model.threads
        costs = (self._costs.of(step, batch) for step in self._model.plan.steps)
        return StepTime(
            test=test,
            tokens=batch.n_tokens,
            depth=self._depth,
            threads=self._model.threads,
            ms=run_ms + python_ms,
            work_ms=work_ms,
            waiting_ms=run_ms - work_ms,
            python_ms=python_ms,
            limit_ms=1e3 * self.roofs.seconds(sum(costs, Cost()))[0],
        )

    def _kernels(self, test: str, batch: Batch, profile: Profile) -> list[KernelTime]:
        """By kernel that had any tiles, the one that takes most time first."""
        times = (profile.end_ns - profile.begin_ns).sum(axis=0) / 1e9 / self._model.threads
        seconds: dict[str, float] = {}
        calls: Counter[str] = Counter()
        costs: dict[str, Cost] = {}
        for step, s in zip(self._model.plan.steps, times, strict=True):
            seconds[step.kernel] = seconds.get(step.kernel, 0.0) + float(s)
            calls[step.kernel] += 1
            costs[step.kernel] = costs.get(step.kernel, Cost()) + self._costs.of(step, batch)
        total = sum(seconds.values())
        ran = {name: s for name, s in seconds.items() if s > 0}
        found: list[KernelTime] = []
        for name, s in sorted(ran.items(), key=lambda item: -item[1]):
            cost, (limit, bound) = costs[name], self.roofs.seconds(costs[name])
            n_bytes, mads = cost.memory_bytes + cost.cache_bytes, cost.code_mads + cost.float_mads
            found.append(
                KernelTime(
                    test=test,
                    kernel=name,
                    calls=calls[name],
                    ms=1e3 * s,
                    share=s / total,
                    bytes=n_bytes,
                    mads=mads,
                    gb_per_s=n_bytes / s / 1e9,
                    gmads_per_s=mads / s / 1e9,
                    bound=bound,
                    fraction_of_limit=limit / s,
                )
            )
        return found

    def engine(self, tokenizer: Tokenizer, model_python_ms: float) -> list[EngineTime]:
        """Steps of the whole engine that generate a token each: scheduler, model, sampler, text.

        `model_python_ms`: what Python takes within the model's part, as `decode` found.
        """
        return [
            self._engine(name, params, tokenizer, model_python_ms)
            for name, params in SAMPLERS.items()
        ]

    def _engine(
        self, name: str, params: SamplingParams, tokenizer: Tokenizer, model_python_ms: float
    ) -> EngineTime:
        watched = Watched(self._model)
        engine = Engine(watched)
        request = Generation(
            self._runner.tokens(max(1, self._depth)),
            engine.sequence(),
            _ignore,
            sampler=Sampler(params, self._model.vocab_size),
            detokenizer=Detokenizer(tokenizer),
            max_tokens=ENGINE_RUNS + 1,
        )
        engine.submit(request)
        while not request.n_generated:
            engine.step()
        steps: list[float] = []
        watched.ms.clear()
        for _ in range(ENGINE_RUNS):
            begin = time.perf_counter()
            engine.step()
            steps.append(1e3 * (time.perf_counter() - begin))
        outside = (step - inside for step, inside in zip(steps, watched.ms, strict=True))
        python_ms = statistics.median(outside) + model_python_ms
        return EngineTime(
            name, self._depth, self._model.threads, statistics.median(steps), python_ms
        )


def _ignore(delta: Delta) -> None:
    """No one listens."""


class Watched:
    """A model that notes how long its runs take."""

    def __init__(self, model: CompiledModel) -> None:
        self._model = model
        self.ms: list[float] = []

    @property
    def vocab_size(self) -> int:
        return self._model.vocab_size

    @property
    def context_length(self) -> int:
        return self._model.context_length

    @property
    def max_batch(self) -> int:
        return self._model.max_batch

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        return self._model.groups

    @property
    def fingerprint(self) -> str:
        """As the model's own."""
        return self._model.fingerprint

    def copy_page(self, group: int, source: int, target: int) -> None:
        """As the model's own."""
        self._model.copy_page(group, source, target)

    def read_page(self, group: int, page: int) -> bytes:
        """As the model's own."""
        return self._model.read_page(group, page)

    def mass(self, pages: Sequence[int]) -> NDArray[np.float32]:
        """As the model's own."""
        return self._model.mass(pages)

    def move(self, moves: Sequence[Moves]) -> None:
        """As the model's own."""
        self._model.move(moves)

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """As the model's own."""
        self._model.write_page(group, page, data)

    @property
    def sizes(self) -> Sizes:
        """As the model's own."""
        return self._model.sizes

    def discard_pages(self, group: int, pages: Sequence[int]) -> None:
        """As the model's own."""
        self._model.discard_pages(group, pages)

    @property
    def maxima(self) -> NDArray[np.float32]:
        return self._model.maxima

    @property
    def ranked(self) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        return self._model.ranked

    @property
    def states(self) -> NDArray[np.float32]:
        """As the model's own."""
        return self._model.states

    def run(self, batch: Batch) -> NDArray[np.float32]:
        """As the model's own."""
        begin = time.perf_counter()
        logits = self._model.run(batch)
        self.ms.append(1e3 * (time.perf_counter() - begin))
        return logits

    def close(self) -> None:
        """Nothing: the model is another's."""
