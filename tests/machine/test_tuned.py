"""What is kept for a machine: found again by it alone, and never believed when it is damaged."""

from __future__ import annotations

import json
import tomllib
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base import version
from satchel.base.errors import CacheError
from satchel.machine import Machine, tuned
from satchel.machine.fakes import HYBRID_LAPTOP, SMALL_BOARD
from satchel.machine.load import LoadMeter, busy_s, others_share
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.machine.tuned import (
    TileTrial,
    Trial,
    Tuned,
    best_threads,
    forget_tuned,
    keep_tuned,
    read_tuned,
    tiles_of,
    tuned_path,
)

FOUND = Tuned(
    3,
    "some model",
    False,
    (Trial(3, 100.0, 10.0), Trial(4, 90.5, 9.0)),
    "some target",
    Tiles(tokens=6, run_bytes=1 << 20),
    (TileTrial("tokens", 8, 1.0, False), TileTrial("tokens", 6, 1.2, True)),
)


def test_kept_and_forgotten(tmp_path: Path) -> None:
    assert read_tuned(tmp_path, SMALL_BOARD) is None
    assert best_threads(tmp_path, SMALL_BOARD) == 4
    path = keep_tuned(tmp_path, SMALL_BOARD, FOUND)
    assert [path] == list((tmp_path / "tuned").iterdir())
    assert read_tuned(tmp_path, SMALL_BOARD) == FOUND
    assert best_threads(tmp_path, SMALL_BOARD) == 3
    assert best_threads(tmp_path, HYBRID_LAPTOP) == 6
    keep_tuned(tmp_path, HYBRID_LAPTOP, replace(FOUND, threads=5))
    assert best_threads(tmp_path, SMALL_BOARD) == 3
    assert forget_tuned(tmp_path, SMALL_BOARD)
    assert not forget_tuned(tmp_path, SMALL_BOARD)
    assert best_threads(tmp_path, HYBRID_LAPTOP) == 5


@pytest.mark.parametrize(
    "other",
    [
        replace(SMALL_BOARD, quota=2.0),
        replace(SMALL_BOARD, allowed=frozenset({6, 7})),
        replace(SMALL_BOARD, name="another board"),
        replace(SMALL_BOARD, memory_bytes=4 << 30),
        replace(SMALL_BOARD, cores=SMALL_BOARD.cores[:6]),
    ],
)
def test_another_machine_or_limit(other: Machine, tmp_path: Path) -> None:
    path = keep_tuned(tmp_path, SMALL_BOARD, FOUND)
    assert read_tuned(tmp_path, other) is None
    path.rename(tuned_path(tmp_path, other))  # as if the names collided
    assert read_tuned(tmp_path, other) is None


def test_another_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_tuned(tmp_path, SMALL_BOARD, FOUND)
    monkeypatch.setattr(tuned, "VERSION", "9.9")
    assert read_tuned(tmp_path, SMALL_BOARD) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


WHOLE = {"schema": 2, "machine": tuned.facts(SMALL_BOARD), **asdict(FOUND)}


def test_what_was_kept_is_read() -> None:
    assert _read(json.dumps(WHOLE)) == FOUND


@pytest.mark.parametrize("missing", ["target", "tiles", "tile_trials"])
def test_a_file_of_an_older_version(missing: str) -> None:
    assert _read(json.dumps(WHOLE | {"schema": 1})) is None
    assert _read(json.dumps({k: v for k, v in WHOLE.items() if k != missing})) is None


@given(st.sampled_from(sorted(WHOLE)), JSON)
def test_absurd_content(key: str, value: Any) -> None:
    found = _read(json.dumps(WHOLE | {key: value}))
    assert found is None or (type(found.threads) is int and 1 <= found.threads <= 8)


@given(st.sampled_from(sorted(vars(DEFAULT))), JSON)
def test_absurd_tiles(key: str, value: Any) -> None:
    """What is read can be made: see tests/kernels/test_tiles.py for all that can."""
    found = _read(json.dumps(WHOLE | {"tiles": vars(DEFAULT) | {key: value}}))
    assert found is None or found.tiles.are_sane


@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(tokens=0),
        Tiles(tokens=17),
        Tiles(lanes=5),
        Tiles(ahead_bytes=-1),
        Tiles(ahead_bytes=True),
        Tiles(longest_run=0),
        Tiles(run_bytes=0),
        Tiles(queries=25),
    ],
)
def test_tiles_that_make_no_sense(tiles: Tiles) -> None:
    assert DEFAULT.are_sane
    assert not tiles.are_sane
    assert _read(json.dumps(WHOLE | {"tiles": vars(tiles)})) is None


def test_tiles_are_for_their_target() -> None:
    assert tiles_of(FOUND, "some target") == FOUND.tiles
    assert tiles_of(FOUND, "another") == tiles_of(None, "some target") == DEFAULT


@given(st.text() | st.integers(0, 600))
def test_damaged_files(damage: str | int) -> None:
    whole = json.dumps(WHOLE | {"trials": [{"a": 1}]})
    assert _read(damage if isinstance(damage, str) else whole[:damage]) is None


def test_deep_nesting() -> None:
    assert _read("[" * 100_000) is None


def _read(text: str) -> Tuned | None:
    """What is found in a file of this text."""

    class Folder:
        def __truediv__(self, _: str) -> Folder:
            return self

        def read_text(self, encoding: str) -> str:
            return text

    folder: Any = Folder()
    return read_tuned(folder, SMALL_BOARD)


def test_a_folder_that_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "tuned").write_text("a file where the folder should be")
    with pytest.raises(CacheError, match="can't be written"):
        keep_tuned(tmp_path, SMALL_BOARD, FOUND)
    assert read_tuned(tmp_path, SMALL_BOARD) is None
    assert not forget_tuned(tmp_path, SMALL_BOARD)


def test_the_version_is_the_packages() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    assert tomllib.loads(project.read_text())["project"]["version"] == version.VERSION


def test_busy_seconds(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    stat = tmp_path / "proc" / "stat"
    stat.write_text(
        "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 100 20 30 4000 50 6 7 8 0 0\ncpu1 1 0 0 0 0 0 0 0 0 0\n"
        "cpu10 5000 0 0 0 0 0 0 0 0 0\nintr 1\n"
    )
    zero = busy_s([0], tmp_path)
    both = busy_s([0, 1], tmp_path)
    assert zero is not None
    assert both is not None
    assert both / zero == pytest.approx(172 / 171)
    assert busy_s([7], tmp_path) is None
    stat.write_text("cpu0 1 2\n")
    assert busy_s([0], tmp_path) is None
    assert busy_s([0], tmp_path / "none") is None


def test_a_share_is_a_share() -> None:
    with LoadMeter(frozenset({0})) as load:
        sum(range(200_000))
    assert 0 <= load.share <= 1
    assert 0 <= others_share(frozenset({0}), 0.01) <= 1
    assert others_share(frozenset({4095}), 0) == 0  # a CPU that is not there
