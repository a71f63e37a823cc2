"""Which tiles are best on this machine, by trying: one choice after another, each beside what was
best before it.

A layer of a 1B shape is run with each, in the k-quants that most models come in. They need more
registers than other formats, so what has room there has room everywhere; the reverse is not true.
What counts is the time of the kernels that the choice is about, in prompts, and where weights bind
as well in steps of a few tokens, by the geometric mean.

A rival takes the place of what was best if it is faster in every round, by more than `NOISE` in
the middle one, twice: no bit of a result depends on it, but who wins by chance changes for nothing.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from satchel.base.options import options
from satchel.compiler.model import CompiledModel, host_target, load_model
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.kernels.attention import attend, group_shape
from satchel.kernels.matmul import matmul, pass_shape
from satchel.lang.target import Target
from satchel.machine import Machine, this_machine
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.machine.tuned import TileTrial
from satchel.measure.bench import Runner
from satchel.measure.shapes import shape_file
from satchel.runtime.batch import PAGE, Batch

SHAPE, FORMAT = "llama-3.2-1b-layer", "q4_k_m"
ROUNDS = 4
NOISE = 0.03
HOPELESS = 0.85  # of the best one's speed in the first round: the other rounds are spared
PROMPT, LEAST_PROMPT = 256, 32
SAMPLE_S = 0.06  # of a prompt, or longer if the least one takes longer
FEW, FEW_RUNS = 8, 4  # tokens of a step where weights bind, and how often it is run


@dataclass(frozen=True)
class Choice:
    """A field of Tiles, what it is by default, and what else is worth trying."""

    name: str
    usual: int
    values: tuple[int, ...]
    kernel: str = matmul.name  # whose time counts
    in_few: bool = True  # whether steps of a few tokens count, too


Speed: TypeAlias = Callable[[Tiles, Choice], float]


def choices(machine: Machine, target: Target) -> list[Choice]:
    """All that is tried, what needs no compiling first."""
    bits, registers = target.bits, target.registers
    passes, heads = (
        pass_shape(target, 1, DEFAULT),
        group_shape(1, bits, registers, DEFAULT),
    )
    tokens, lanes, queries = passes["widths"][0], passes["lanes"], heads["widths"][0]
    ahead, run_bytes = DEFAULT.ahead_bytes, DEFAULT.run_bytes
    level = max((cache.level for cache in machine.caches), default=0)
    shared = machine.cache_bytes(level) or 2 * run_bytes
    found = [
        Choice("ahead_bytes", ahead, (0, ahead // 2, 2 * ahead)),
        Choice(
            "run_bytes",
            run_bytes,
            tuple(sorted({shared // n for n in (2, 4, 8) if shared // n < run_bytes})),
            in_few=False,
        ),
        Choice("longest_run", DEFAULT.longest_run, (PROMPT // 4, PROMPT // 2), in_few=False),
        Choice("tokens", tokens, (3 * tokens // 4, 3 * tokens // 2)),
        Choice("lanes", lanes, tuple(n for n in (4, 8, 16) if n != lanes and 32 * n >= bits)),
        Choice("queries", queries, (2 * queries // 3, 3 * queries // 2), attend.name, in_few=False),
    ]
    return [choice for choice in found if choice.values]


def untried(trials: Sequence[TileTrial]) -> list[str]:
    """The choices that there was no time for."""
    wanted = choices(this_machine(), host_target(options().target))
    return [choice.name for choice in wanted if choice.name not in {t.choice for t in trials}]


def search(
    wanted: Sequence[Choice], speed: Speed, until: float = math.inf
) -> tuple[Tiles, list[TileTrial]]:
    """The best tiles, and all that was tried until then (by time.monotonic)."""
    best = DEFAULT
    trials: list[TileTrial] = []
    for choice in wanted:
        if time.monotonic() > until:
            break
        rivals = {value: replace(best, **{choice.name: value}) for value in choice.values}
        gains = race(best, rivals, choice, speed)
        winner = max(gains, key=lambda value: statistics.median(gains[value]))
        again = {winner: rivals[winner]}
        wins = is_gain(gains[winner]) and is_gain(race(best, again, choice, speed)[winner])
        best = rivals[winner] if wins else best
        trials.append(TileTrial(choice.name, choice.usual, 1.0, not wins))
        trials += [
            TileTrial(
                choice.name, value, round(statistics.median(gain), 3), wins and value == winner
            )
            for value, gain in gains.items()
        ]
    return best, trials


def race(
    best: Tiles, rivals: dict[int, Tiles], choice: Choice, speed: Speed
) -> dict[int, list[float]]:
    """The rivals' speeds in each round, as multiples of that of the best so far in the same one."""
    gains: dict[int, list[float]] = {value: [] for value in rivals}
    for turn in range(ROUNDS + 1):
        own = speed(best, choice)
        for value, tiles in rivals.items():
            if gains[value] and gains[value][0] < HOPELESS:
                continue
            gain = speed(tiles, choice) / own
            if turn:  # the first time wakes them up
                gains[value].append(gain)
    return gains


def is_gain(gains: Sequence[float]) -> bool:
    """Whether it is more than noise."""
    return min(gains) > 1 and statistics.median(gains) > 1 + NOISE


def tune_tiles(threads: int, until: float = math.inf) -> tuple[str, Tiles, list[TileTrial]]:
    """Try all choices with so many threads: the target's name, the best tiles, and the trials.

    Random weights are written for it and deleted again. Raises SatchelError, and OSError where the
    disk is full.
    """
    target = host_target(options().target)
    with ExitStack() as stack:
        path = stack.enter_context(shape_file(SHAPE, FORMAT))
        stand = Stand(open_checkpoint(path), threads)
        stack.callback(stand.forget)
        best, trials = search(choices(this_machine(), target), stand.speed, until)
    return target.name, best, trials


class Stand:
    """Models that differ in their tiles alone, loaded when they have their first turn."""

    def __init__(self, checkpoint: Checkpoint, threads: int) -> None:
        self._checkpoint, self._threads = checkpoint, threads
        self._models: dict[Tiles, CompiledModel] = {}
        self._choice: Choice | None = None
        self._prompt = 0
        self._packed: set[Path] = set()

    def speed(self, tiles: Tiles, choice: Choice) -> float:
        """Of the kernels that the choice is about: runs of them a second."""
        if choice != self._choice:  # the rivals of the one before have had their time
            self.close()
            self._choice = choice
        runner = Runner(self._model(tiles))
        prompt = runner.batch(0, self._prompt or self._sized(runner))
        seconds = kernel_seconds(runner.model, prompt, choice.kernel)
        if not choice.in_few:
            return 1 / seconds
        few = runner.batch(len(prompt.tokens), FEW)
        few_seconds = sum(kernel_seconds(runner.model, few, choice.kernel) for _ in range(FEW_RUNS))
        return 1 / math.sqrt(seconds * few_seconds)

    def _model(self, tiles: Tiles) -> CompiledModel:
        if tiles not in self._models:
            n_pages = -(-(PROMPT + FEW) // PAGE)
            self._models[tiles] = load_model(
                self._checkpoint,
                context=n_pages * PAGE,
                threads=self._threads,
                max_batch=PROMPT,
                n_pages=n_pages,
                tiles=tiles,
            )
            self._packed.update(self._models[tiles].packed_files)
        return self._models[tiles]

    def _sized(self, runner: Runner) -> int:
        """Tokens of a prompt that takes so long, more or less."""
        runner.prompt(LEAST_PROMPT)
        speed = runner.prompt(LEAST_PROMPT)
        self._prompt = max(LEAST_PROMPT, min(PROMPT, int(SAMPLE_S * speed)))
        return self._prompt

    def close(self) -> None:
        """Close all models."""
        for model in self._models.values():
            model.close()
        self._models.clear()

    def forget(self) -> None:
        """Close all models, and delete their weights from the cache."""
        self.close()
        for path in self._packed:
            path.unlink(missing_ok=True)


def kernel_seconds(model: CompiledModel, batch: Batch, kernel: str) -> float:
    """How long the steps of a kernel take in one run."""
    profile = model.start(batch, profile=True)
    assert profile is not None
    ns = 0.0
    for i, step in enumerate(model.plan.steps):
        used = profile.tiles[:, i] > 0
        if step.kernel.startswith(kernel) and used.any():
            ns += float(profile.end_ns[used, i].max() - profile.begin_ns[used, i].min())
    return ns / 1e9
