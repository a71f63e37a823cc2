"""`satchel tune`, and the first use of other commands."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.measure.tiny import write_tiny

from satchel.compiler.model import host_target
from satchel.files.checkpoint import Checkpoint
from satchel.machine import this_machine
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.machine.tuned import TileTrial, Trial, Tuned, tuned_path
from satchel.measure import shapes, tune, tune_tiles
from satchel.measure.tune import candidates


def others(share: float) -> Callable[[frozenset[int], float], float]:
    def run(cpus: frozenset[int], seconds: float) -> float:
        return share

    return run


def fake_tiles(threads: int, until: float) -> tuple[str, Tiles, list[TileTrial]]:
    trials = [TileTrial("tokens", 8, 1.0, False), TileTrial("tokens", 6, 1.25, True)]
    return "a target", Tiles(tokens=6), trials


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model's path; the cache is an empty folder, samples are short, and no tiles tried."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(tune, "BUDGET_S", 0.1)
    monkeypatch.setattr(tune, "BUSY", 1.0)  # whatever runs beside the tests
    monkeypatch.setattr(tune, "others_share", others(0.0))
    monkeypatch.setattr(tune, "tune_tiles", fake_tiles)
    return str(write_tiny(tmp_path / "tiny.gguf"))


@pytest.mark.slow
def test_tune(model: str, call: Call) -> None:
    done = call("tune", model, "--json")
    assert done.code == 0
    found = json.loads(done.out)
    assert [trial["threads"] for trial in found["trials"]] == candidates(this_machine())
    assert all(t["prompt_tokens_per_s"] > 0 < t["generated_tokens_per_s"] for t in found["trials"])
    assert found["threads"] in candidates(this_machine())
    assert Path(found["kept"]).is_file()
    assert found["tiles"] == {**vars(DEFAULT), "tokens": 6}
    assert found["target"] == "a target"
    shown = json.loads(call("doctor", "--json", "-t", "1").out)["tuned"]
    assert shown["threads"] == found["threads"]
    assert "tiles: tokens 6" in call("doctor", "-t", "1").out
    again = call("tune", model)
    assert (again.code, again.out.count("chosen")) == (0, 2)
    assert "tokens of a product at once  6                    1.25  chosen" in again.out
    assert "kept as" in again.err
    assert call("tune", "--clear").err == "forgotten\n"
    assert call("tune", "--clear").err == "nothing was kept for this machine\n"
    assert json.loads(call("doctor", "--json", "-t", "1").out)["tuned"] is None
    assert call("tune", model, "--clear").code == 2


@pytest.mark.slow
def test_without_a_model(
    model: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Random weights, real tiles: nothing of them is left in the cache."""
    toy = shapes.Shape("llama", 1, 128, 256, 2, 1, 64, 300, "llama-bpe", 512, 1e4)
    monkeypatch.setitem(shapes.SHAPES, tune.SHAPE, toy)
    monkeypatch.setitem(shapes.SHAPES, tune_tiles.SHAPE, toy)
    monkeypatch.setattr(tune, "tune_tiles", tune_tiles.tune_tiles)
    monkeypatch.setattr(tune_tiles, "ROUNDS", 1)
    found = json.loads(call("tune", "--json").out)
    assert found["model"] == "llama-3.2-1b-slice q4_k_m"
    tried = [choice.name for choice in tune_tiles.choices(this_machine(), host_target())]
    assert list(dict.fromkeys(trial["choice"] for trial in found["tile_trials"])) == tried
    assert all(trial["speed"] > 0 for trial in found["tile_trials"])
    assert sum(trial["chosen"] for trial in found["tile_trials"]) == len(tried)
    assert not list((tmp_path / "cache" / "packed").glob("*.weights"))


@pytest.mark.slow
def test_no_room_for_random_weights(
    model: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Threads are tuned all the same."""

    def fail(threads: int, until: float) -> tuple[str, Tiles, list[TileTrial]]:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tune, "tune_tiles", fail)
    done = call("tune", model, "--json")
    assert "no tiles were tried: [Errno 28] No space left on device" in done.err
    assert json.loads(done.out)["tiles"] == vars(DEFAULT)
    assert json.loads(done.out)["kept"]


@pytest.mark.slow
def test_a_cache_that_can_not_be_written(model: str, call: Call, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "tuned").write_text("no folder")
    done = call("tune", model, "--json")
    assert done.code == 0
    assert "can't be kept" in done.err
    assert json.loads(done.out)["kept"] is None


@pytest.mark.slow
def test_what_was_measured_beside_others_is_not_kept(
    model: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tune, "BUSY", -1.0)
    done = call("tune", model)
    assert (done.code, done.out.count("chosen")) == (0, 2)
    assert "not kept, as others took much of the processors" in done.err
    assert not (tmp_path / "cache" / "tuned").exists()


def fake_tune(threads: int, busy: bool) -> Callable[[Checkpoint, str, float], tuple[Tuned, None]]:
    def run(_: Checkpoint, name: str, patience_s: float) -> tuple[Tuned, None]:
        return Tuned(threads, name, busy, (Trial(threads, 1.0, 1.0),)), None

    return run


BENCH = ("-p", "4", "-n", "0", "-r", "1", "--json")


@pytest.mark.slow
def test_the_first_bench_tunes(
    model: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tune, "tune", fake_tune(1, busy=False))
    first = call("bench", model, *BENCH)
    assert "satchel: 1 thread measured best here" in first.err
    assert "not all tiles were tried: run satchel tune" in first.err
    assert first.err.count("\n") == 1
    assert json.loads(first.out)["threads"] == 1
    second = call("bench", model, *BENCH)
    assert (second.code, second.err) == (0, "")
    assert json.loads(call("bench", model, *BENCH, "-t", "2").out)["threads"] == 2
    path = tuned_path(tmp_path / "cache", this_machine())
    path.write_text("damaged")
    assert "measured best" in call("bench", model, *BENCH).err
    assert json.loads(path.read_text())["threads"] == 1


@pytest.mark.slow
@pytest.mark.parametrize(("before", "meanwhile"), [(1.5, False), (0.0, True)])
def test_a_busy_machine_is_not_tuned_by_the_way(
    before: float,
    meanwhile: bool,
    model: str,
    call: Call,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(tune, "others_share", others(before))
    monkeypatch.setattr(tune, "tune", fake_tune(1, busy=meanwhile))
    done = call("bench", model, *BENCH)
    assert "this machine is busy" in done.err
    assert json.loads(done.out)["threads"] == this_machine().default_threads
    assert not (tmp_path / "cache" / "tuned").exists()
    asked = call("bench", model, *BENCH, "-t", "1")
    assert (asked.code, asked.err) == (0, "")


def test_the_first_serve_tunes(
    model: str, call: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from satchel.serve import run

    served: list[list[str]] = []

    def serve(references: list[str], *_: object) -> int:
        served.append(references)
        return 0

    monkeypatch.setattr(run, "serve", serve)
    monkeypatch.setattr(tune, "tune", fake_tune(1, busy=False))
    for words in (["serve"], ["serve", model, "-t", "2"]):
        assert call(*words).err == ""
    first = json.loads(call("serve", model, "--log-json").err)
    assert (first["event"], first["said"][:22]) == ("tuned", "1 thread measured best")
    assert call("serve", model).err == ""
    assert served == [[], [model], [model], [model]]
