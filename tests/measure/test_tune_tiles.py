"""Which tiles are tried on which machine, and what it takes to be chosen; nothing is timed here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from satchel.compiler.model import host_target
from satchel.lang.target import choose_target
from satchel.machine import Cache, Machine, this_machine
from satchel.machine.fakes import HYBRID_LAPTOP, SMALL_BOARD, TWO_SOCKETS
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.measure import tune_tiles
from satchel.measure.tune_tiles import ROUNDS, Choice, choices, search, untried

TOKENS = Choice("tokens", 8, (4, 6, 12))
AHEAD = Choice("ahead_bytes", 3072, (0, 1536, 6144))


def tried(machine: Machine) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Of each choice, the usual value and its rivals."""
    target = choose_target(machine.isa, machine.features)
    return {c.name: (c.usual, c.values) for c in choices(machine, target)}


def test_wide_registers_and_a_large_cache() -> None:
    assert tried(TWO_SOCKETS) == {
        "ahead_bytes": (3072, (0, 1536, 6144)),
        "longest_run": (256, (64, 128)),
        "tokens": (8, (6, 12)),
        "queries": (6, (4, 9)),
    }


def test_few_registers() -> None:
    found = tried(HYBRID_LAPTOP)
    assert found["tokens"] == (8, (6, 12))
    assert found["lanes"] == (8, (16,))
    assert found["queries"] == (2, (1, 3))
    assert found["run_bytes"] == (4 << 20, (3 << 20,))


def test_a_small_shared_cache() -> None:
    found = tried(SMALL_BOARD)
    assert found["lanes"] == (8, (4, 16))
    assert found["run_bytes"] == (4 << 20, (393216, 786432, 1572864))
    alone = replace(SMALL_BOARD, caches=(Cache(1, 32 << 10), Cache(2, 512 << 10)))
    assert tried(alone)["run_bytes"][1] == (65536, 131072, 262144)
    unknown = replace(SMALL_BOARD, caches=())
    assert tried(unknown)["run_bytes"][1] == (1 << 20, 2 << 20)


def always(gains: dict[Tiles, float]) -> Callable[[Tiles, Choice], float]:
    """Speeds that never change: 1 where none is given."""
    return lambda tiles, choice: gains.get(tiles, 1.0)


def test_a_gain_is_kept_and_built_upon() -> None:
    """Each choice is tried beside the best so far, not beside the default."""
    six = Tiles(tokens=6)
    best, trials = search(
        [TOKENS, AHEAD],
        always({six: 1.2, Tiles(tokens=12): 1.1, replace(six, ahead_bytes=0): 1.5}),
    )
    assert best == Tiles(tokens=6, ahead_bytes=0)
    assert [(t.choice, t.value, t.speed) for t in trials if t.chosen] == [
        ("tokens", 6, 1.2),
        ("ahead_bytes", 0, 1.25),
    ]
    assert [t.value for t in trials] == [8, 4, 6, 12, 3072, 0, 1536, 6144]


def test_nothing_is_gained() -> None:
    best, trials = search([TOKENS, AHEAD], always({Tiles(tokens=6): 1.02}))
    assert best == DEFAULT
    assert [(t.choice, t.value) for t in trials if t.chosen] == [
        ("tokens", 8),
        ("ahead_bytes", 3072),
    ]


@pytest.mark.parametrize(
    ("rounds", "chosen"),
    [
        ([1.1] * 2 * ROUNDS, True),
        ([1.3] * (ROUNDS - 1) + [0.99] + [1.3] * ROUNDS, False),  # not in every round
        ([1.3] * ROUNDS + [1.0] * ROUNDS, False),  # not a second time
        ([1.02] * 2 * ROUNDS, False),  # no more than noise
    ],
)
def test_chance_is_no_gain(rounds: list[float], chosen: bool) -> None:
    """The machine grows slower all the while, for both alike; first turns don't count."""
    slower, gains = itertools.count(), iter(rounds)
    waking = itertools.cycle([True] + [False] * ROUNDS)

    def speed(tiles: Tiles, choice: Choice) -> float:
        now = 100 / (1 + next(slower) // 2)
        return now * (1.0 if tiles == DEFAULT else 9.0 if next(waking) else next(gains))

    best, trials = search([Choice("tokens", 8, (6,))], speed)
    assert best == (Tiles(tokens=6) if chosen else DEFAULT)
    assert [t.chosen for t in trials] == [not chosen, chosen]


def test_hopeless_ones_are_spared() -> None:
    turns: list[Tiles] = []

    def speed(tiles: Tiles, choice: Choice) -> float:
        turns.append(tiles)
        return 0.5 if tiles.tokens == 12 else 1.0

    _, trials = search([TOKENS], speed)
    assert turns.count(Tiles(tokens=12)) == 2
    assert turns.count(Tiles(tokens=4)) == ROUNDS + 1
    assert trials[-1].speed == 0.5


def test_patience_ends_between_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(tune_tiles.time, "monotonic", lambda: next(clock))
    assert {t.choice for t in search([TOKENS, AHEAD], always({}), until=0)[1]} == {"tokens"}
    assert {t.choice for t in search([TOKENS, AHEAD], always({}))[1]} == {"tokens", "ahead_bytes"}


def test_what_there_was_no_time_for_is_known() -> None:
    wanted = choices(this_machine(), host_target())
    _, trials = search(wanted, always({}))
    assert untried(trials) == []
    assert untried([t for t in trials if t.choice != "tokens"]) == ["tokens"]


def small_cache(tiles: Tiles, choice: Choice) -> float:
    """A machine whose cores share 1 MiB: runs that do not fit are read from memory for all rows
    again; the shorter a run, the more often all weights are read.
    """
    bytes_of_token, matrix = 8192 * 9 // 8, 8192 * 2048
    n = max(16, min(tiles.longest_run, tiles.run_bytes // bytes_of_token))
    misses = 1.0 if n * bytes_of_token > 1 << 20 else 0.0
    return 1 / (1 + misses + 8 / n) * matrix


def test_what_a_small_shared_cache_is_best_served_by() -> None:
    machine = replace(SMALL_BOARD, caches=(Cache(1, 32 << 10), Cache(2, 1 << 20, 4)))
    target = choose_target(machine.isa, machine.features)
    best, _ = search(choices(machine, target), small_cache)
    assert best == Tiles(run_bytes=512 << 10)
    large = choices(TWO_SOCKETS, choose_target(TWO_SOCKETS.isa, TWO_SOCKETS.features))
    assert search(large, lambda tiles, _: 1 / (1 + 8 / tiles.longest_run))[0] == DEFAULT
    assert math.isfinite(small_cache(DEFAULT, AHEAD))
