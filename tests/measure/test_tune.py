"""Which threads are tried, what is chosen, and that it is used from then on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.compiler.test_invariants import another_target
from tests.measure.tiny import write_tiny

from satchel.compiler.explain import explain
from satchel.compiler.model import host_target, load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.machine import Machine, this_machine, tuned
from satchel.machine.fakes import HYBRID_LAPTOP, SMALL_BOARD, TWO_SOCKETS
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.machine.tuned import Trial, Tuned, keep_tuned
from satchel.measure import tune
from satchel.measure.bench import Case
from satchel.measure.tune import candidates, choose, sample


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model's path; the cache is an empty folder."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    return str(write_tiny(tmp_path / "tiny.gguf"))


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (HYBRID_LAPTOP, [1, 2, 3, 4, 5, 6, 14]),
        (SMALL_BOARD, [1, 2, 3, 4, 8]),
        (TWO_SOCKETS, [1, 2, 3, 4, 8, 16, 32, 48, 63, 64]),
        (replace(TWO_SOCKETS, quota=2.5), [1, 2, 3]),
        (replace(TWO_SOCKETS, quota=0.1), [1]),
        (replace(SMALL_BOARD, allowed=frozenset({7})), [1]),
    ],
)
def test_candidates(machine: Machine, expected: list[int]) -> None:
    assert candidates(machine) == expected


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ([(1, 100, 10), (2, 200, 18), (4, 400, 19)], 4),
        ([(1, 100, 10), (2, 200, 19), (4, 201, 19)], 2),  # no gain: leave cores to others
        ([(1, 100, 20), (2, 200, 2)], 1),
        ([(1, 100, 10)], 1),
    ],
)
def test_the_choice(speeds: list[tuple[int, float, float]], best: int) -> None:
    assert choose([Trial(*one) for one in speeds]) == best


def test_candidates_take_turns() -> None:
    asked: list[tuple[int, str]] = []

    def take_turn(threads: int, case: Case) -> float:
        asked.append((threads, case.kind))
        return 100.0 * threads + len(asked) / 1000

    trials = sample([1, 2], [Case("pp", 8), Case("tg", 4)], take_turn)
    assert asked == [(1, "pp"), (1, "tg"), (2, "pp"), (2, "tg")] * (tune.ROUNDS + 1)
    assert [t.threads for t in trials] == [1, 2]
    assert trials[1].prompt_tokens_per_s == pytest.approx(200, abs=0.1)


def test_models_use_what_was_measured(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(model).parent / "cache"
    checkpoint = open_checkpoint(Path(model))
    keep_tuned(folder, this_machine(), Tuned(1, "m", False, ()))

    def threads(asked: int | None) -> int:
        with load_model(checkpoint, context=64, n_pages=1, threads=asked) as loaded:
            return loaded.threads

    assert threads(None) == 1
    assert threads(2) == 2
    monkeypatch.setenv("SATCHEL_THREADS", "3")
    assert threads(None) == 3
    monkeypatch.delenv("SATCHEL_THREADS")
    monkeypatch.setattr(tuned, "VERSION", "0")
    assert threads(None) == this_machine().default_threads


@pytest.mark.slow
def test_models_use_the_tiles_that_were_measured(model: str) -> None:
    """On the target that they were measured on, and on no other."""
    folder, checkpoint = Path(model).parent / "cache", open_checkpoint(Path(model))
    mine = Tiles(tokens=2)

    def loaded(target: str | None = None, given: Tiles | None = None) -> tuple[Tiles, bool, str]:
        """The tiles, whether the kernels are made so, and what pages of KV on disk are known by."""
        with load_model(
            checkpoint, context=64, n_pages=1, threads=1, target=target, tiles=given
        ) as m:
            products = [s.kernel for s in m.plan.steps if s.kernel.startswith("matmul")]
            return m.tiles, not any("_4_2_1" in name for name in products), m.fingerprint

    before = loaded()
    assert before[:2] == (DEFAULT, False)
    keep_tuned(folder, this_machine(), Tuned(1, "m", False, (), host_target().name, mine))
    assert loaded() == (mine, True, before[2])
    assert loaded(given=DEFAULT) == before
    assert loaded(target=another_target())[0] == DEFAULT
    assert not any("_4_2_1(" in text for _, text in explain(checkpoint))
