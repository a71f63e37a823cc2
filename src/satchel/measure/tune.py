"""Which number of threads is best on this machine, and then which tiles, by trying: some seconds,
once. For tiles see tune_tiles.py.

The candidates take turns, on one model with as many crews of workers; those that have no turn
sleep. What counts is prompts and generation alike, by the geometric mean of their speeds. Of those
within `NOISE` of the best, the smallest number is taken: it leaves more to others.

How long workers stay awake while they wait, and how much of a matrix they claim at once, are no
candidates: 5 to 200 us, and half to twice the share, made no difference beyond the noise.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from satchel.base import log
from satchel.base.errors import CacheError, OptionError
from satchel.base.options import options
from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import Checkpoint
from satchel.machine import Machine, this_machine
from satchel.machine.load import LoadMeter, others_share
from satchel.machine.tiles import DEFAULT
from satchel.machine.tuned import Trial, Tuned, keep_tuned, read_tuned
from satchel.measure.bench import Case, Runner
from satchel.measure.tune_tiles import tune_tiles, untried
from satchel.runtime.batch import PAGE

SHAPE, FORMAT = "llama-3.2-1b-slice", "q4_k_m"  # run when no model is named: no download
BUDGET_S = 3.0  # of all samples together
PATIENCE_S = 10.0  # of first use: no choice of tiles is begun after so long
MOST_SAMPLE_S = 0.1
ROUNDS = 5
NOISE = 0.03
LOOK_S = 0.2  # how long to look whether others are at work
BUSY = 0.15  # a greater share of the processors that others take makes a choice a guess
PROMPT, GENERATE = 256, 64  # tokens of a sample, or fewer where these take too long
LEAST_PROMPT, LEAST_GENERATE = 16, 2


def candidates(machine: Machine) -> list[int]:
    """Numbers of threads worth trying, ascending: up to 4 each, then in steps; all fast cores, one
    less, half; all cores. None more than the time that the process is given.
    """
    fast, every = len(machine.fast_cores), len(machine.allowed_cores)
    most = every if machine.quota is None else min(every, math.ceil(machine.quota))
    powers = {1 << i for i in range(2, 8)} if fast > 4 else set[int]()
    wanted = {1, 2, 3, fast // 2, 3 * fast // 4, fast - 1, fast, every, most} | powers
    return sorted(n for n in wanted if 1 <= n <= max(1, most) and (n <= fast or n >= most))


def choose(trials: Sequence[Trial]) -> int:
    """The best number of threads. `trials` is not empty."""
    scores = {
        t.threads: math.sqrt(t.prompt_tokens_per_s * t.generated_tokens_per_s) for t in trials
    }
    enough = (1 - NOISE) * max(scores.values())
    return min(threads for threads, score in scores.items() if score >= enough)


def tune(
    checkpoint: Checkpoint, name: str, patience_s: float = math.inf
) -> tuple[Tuned, CompiledModel]:
    """Try all numbers of threads on a model, which is closed when this returns, and tiles on one of
    random weights. Raises SatchelError.
    """
    machine, begin = this_machine(), time.monotonic()
    with LoadMeter(machine.allowed) as load:
        trials, model = try_threads(checkpoint, candidates(machine))
        threads = choose(trials)
        try:
            target, tiles, tile_trials = tune_tiles(threads, begin + patience_s)
        except (OptionError, OSError) as error:  # there is no room for the weights
            log.warning(f"no tiles were tried: {error}")
            target, tiles, tile_trials = "", DEFAULT, []
    found = (threads, name, load.share > BUSY, tuple(trials), target, tiles, tuple(tile_trials))
    return Tuned(*found), model


def try_threads(
    checkpoint: Checkpoint, numbers: Sequence[int]
) -> tuple[list[Trial], CompiledModel]:
    """Time these numbers of threads on a model, which is closed when this returns."""
    context = min(512, checkpoint.metadata.get_int(f"{checkpoint.arch}.context_length"))
    with ExitStack() as stack:
        model = stack.enter_context(
            load_model(
                checkpoint, context=context, threads=numbers[-1], n_pages=-(-context // PAGE)
            )
        )
        # the model closes the executor that it has in the end
        crews = {n: stack.enter_context(model.executor_for(n)) for n in numbers[:-1]}
        crews[numbers[-1]] = model.executor

        def take_turn(threads: int, case: Case) -> float:
            model.executor = crews[threads]
            return runner.time(case)

        runner = Runner(model)
        runner.warm_up()
        cases = _sized(runner, BUDGET_S / (2 * ROUNDS * len(numbers)))
        trials = sample(numbers, cases, take_turn)
        model.executor = crews[numbers[-1]]
    return trials, model


def sample(
    numbers: Sequence[int], cases: Sequence[Case], take_turn: Callable[[int, Case], float]
) -> list[Trial]:
    """Time both cases for each number of threads, in turns, after a first one to wake up."""
    speeds: dict[tuple[int, Case], list[float]] = {(n, c): [] for n in numbers for c in cases}
    for turn in range(ROUNDS + 1):
        for (threads, case), found in speeds.items():
            speed = take_turn(threads, case)
            if turn:
                found.append(speed)
    prompt, generate = cases

    def median(threads: int, case: Case) -> float:
        return round(statistics.median(speeds[threads, case]), 2)

    return [Trial(n, median(n, prompt), median(n, generate)) for n in numbers]


def _sized(runner: Runner, sample_s: float) -> tuple[Case, Case]:
    """A prompt and a generation that take so long, more or less."""
    sample_s = min(sample_s, MOST_SAMPLE_S)
    prompt_speed, speed = runner.prompt(LEAST_PROMPT), runner.generate(LEAST_GENERATE)
    room = min(runner.model.context_length, runner.model.max_batch)
    n = max(LEAST_PROMPT, min(PROMPT, room, int(sample_s * prompt_speed)))
    return Case("pp", n), Case("tg", max(LEAST_GENERATE, min(GENERATE, int(sample_s * speed))))


def ensure_tuned(checkpoint: Checkpoint, name: str) -> str | None:
    """On first use of a machine, tune it with this model; a line that says what was chosen, or None
    when it was tuned before.

    While others take the processors nothing is measured, or it is not kept. Raises as loading does.
    """
    machine, folder = this_machine(), options().cache_dir
    if read_tuned(folder, machine) is not None:
        return None
    tuned = None
    if others_share(machine.allowed, LOOK_S) <= BUSY:
        tuned, _ = tune(checkpoint, name, PATIENCE_S)
    if tuned is None or tuned.busy:
        return (
            f"this machine is busy, so it was not tuned: {count(machine.default_threads)}, as by "
            "default; run satchel tune when it is quiet, or use -t"
        )
    try:
        keep_tuned(folder, machine, tuned)
    except CacheError as error:
        log.warning(f"what was measured can't be kept, and will be again: {error}")
    tiles = " and some tiles" if tuned.tiles != DEFAULT else ""
    left = "; not all tiles were tried: run satchel tune" if untried(tuned.tile_trials) else ""
    return f"{count(tuned.threads)}{tiles} measured best here (satchel tune --help){left}"


def count(threads: int) -> str:
    """For people."""
    return f"{threads} thread" + "s" * (threads != 1)
