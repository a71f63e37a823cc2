"""Where the time of a step goes: its kernels, each beside its own limit; waiting; Python."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, astuple, dataclass, replace
from operator import sub
from typing import TYPE_CHECKING, Any

from satchel.compiler.model import CompiledModel
from satchel.engine.engine import Engine
from satchel.engine.request import Generation
from satchel.engine.sampler import Sampler, SamplingParams
from satchel.measure.bench import Case, Runner
from satchel.measure.costs import Cost, Costs
from satchel.measure.limits import LimitMeter
from satchel.runtime.batch import PAGE, Batch
from satchel.runtime.executor import Executor, Profile
from satchel.text import Detokenizer, Tokenizer

if TYPE_CHECKING:
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
        runs = [profiler.prompt(n_prompt)] if n_prompt else []
        runs.append(profiler.decode())
        engine = profiler.engine(tokenizer)
        return Report(name, [profiler.step(run) for run in runs], engine, profiler.roofs)


@dataclass(frozen=True)
class Run:
    """A test's median run, and the median of what Python takes around it."""

    test: str
    batch: Batch
    profile: Profile
    python_ms: float


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
        """What the machine could do between all the steps that were profiled: upper quartiles, for
        many a sample meets a bad moment, and a few are too good to be true.
        """
        samples = zip(*map(astuple, self._roofs), strict=True)
        return Roofs(*(sorted(found, reverse=True)[len(found) // 4] for found in samples))

    def prompt(self, n: int) -> Run:
        """A chunk of a prompt, of n tokens or as many as one step takes."""
        n = min(n, self._model.max_batch)
        batch = self._runner.batch(self._depth, n)
        return self._run(f"pp{n}", batch, lambda: self._model.run(batch), PROMPT_RUNS)

    def decode(self) -> Run:
        """One token, straight from the model: no engine, no sampler."""
        # where the token after it begins no page
        batch = self._runner.batch(self._depth - (self._depth % PAGE == PAGE - 1), 1)
        tokens = batch.tokens.tolist()
        return self._run("tg", batch, lambda: self._model.run_again(tokens), DECODE_RUNS)

    def _run(self, test: str, batch: Batch, timed: Callable[[], object], runs: int) -> Run:
        """The median of some runs that are profiled, each beside one whose Python is timed."""
        profiles: list[Profile] = []
        python_ms: list[float] = []
        with Watch(self._model.executor) as native:
            for i in range(runs):
                if i % ROOF_EVERY == 0:
                    self._roofs.append(measure_roofs(self._meter))
                self._model.run(batch)  # so that both come right after another run
                begin = time.perf_counter()
                timed()
                python_ms.append(1e3 * (time.perf_counter() - begin) - native.ms[-1])
                profile = self._model.start(batch, profile=True)
                assert profile is not None
                profiles.append(profile)
        middle = sorted(profiles, key=lambda p: p.run_ns)[runs // 2]
        return Run(test, batch, middle, statistics.median(python_ms))

    def step(self, run: Run) -> tuple[StepTime, list[KernelTime]]:
        """A test's row and those of its kernels, beside the limits as they are known by now."""
        return self._times(run), self._kernels(run)

    def _times(self, run: Run) -> StepTime:
        profile = run.profile
        run_ms = profile.run_ns / 1e6
        work_ms = float((profile.end_ns - profile.begin_ns).sum()) / 1e6 / self._model.threads
        costs = (self._costs.of(step, run.batch) for step in self._model.plan.steps)
        return StepTime(
            test=run.test,
            tokens=run.batch.n_tokens,
            depth=self._depth,
            threads=self._model.threads,
            ms=run_ms + run.python_ms,
            work_ms=work_ms,
            waiting_ms=run_ms - work_ms,
            python_ms=run.python_ms,
            limit_ms=1e3 * self.roofs.seconds(sum(costs, Cost()))[0],
        )

    def _kernels(self, run: Run) -> list[KernelTime]:
        """By kernel that had any tiles, the one that takes most time first."""
        profile, roofs = run.profile, self.roofs
        times = (profile.end_ns - profile.begin_ns).sum(axis=0) / 1e9 / self._model.threads
        seconds: dict[str, float] = {}
        calls: Counter[str] = Counter()
        costs: dict[str, Cost] = {}
        for step, s in zip(self._model.plan.steps, times, strict=True):
            seconds[step.kernel] = seconds.get(step.kernel, 0.0) + float(s)
            calls[step.kernel] += 1
            costs[step.kernel] = costs.get(step.kernel, Cost()) + self._costs.of(step, run.batch)
        total = sum(seconds.values())
        ran = {name: s for name, s in seconds.items() if s > 0}
        found: list[KernelTime] = []
        for name, s in sorted(ran.items(), key=lambda item: -item[1]):
            cost, (limit, bound) = costs[name], roofs.seconds(costs[name])
            n_bytes, mads = cost.memory_bytes + cost.cache_bytes, cost.code_mads + cost.float_mads
            found.append(
                KernelTime(
                    test=run.test,
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

    def engine(self, tokenizer: Tokenizer) -> list[EngineTime]:
        """Steps of the whole engine that generate a token each: scheduler, model, sampler, text."""
        return [self._engine(name, params, tokenizer) for name, params in SAMPLERS.items()]

    def _engine(self, name: str, params: SamplingParams, tokenizer: Tokenizer) -> EngineTime:
        engine = Engine(self._model)
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
        with Watch(self._model.executor) as native:
            for _ in range(ENGINE_RUNS):
                begin = time.perf_counter()
                engine.step()
                steps.append(1e3 * (time.perf_counter() - begin))
        python_ms = statistics.median(map(sub, steps, native.ms))
        return EngineTime(
            name, self._depth, self._model.threads, statistics.median(steps), python_ms
        )


def _ignore(delta: Delta) -> None:
    """No one listens."""


class Watch:
    """Notes how long the native part of each run of an executor takes; all else is Python."""

    def __init__(self, executor: Executor) -> None:
        self.ms: list[float] = []
        self._executor, self._native = executor, executor.native

    def __enter__(self) -> Watch:
        self._executor.native = replace(self._native, run=self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.native = self._native

    def _run(self, control: int) -> None:
        begin = time.perf_counter()
        self._native.run(control)
        self.ms.append(1e3 * (time.perf_counter() - begin))
