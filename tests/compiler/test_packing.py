"""Packed weights in the cache: right, made once, rebuilt when damaged, capped, done without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tests.kernels.weights as random_weights

from satchel.base.options import child_environment
from satchel.compiler import packing
from satchel.compiler.model import host_target
from satchel.compiler.packing import HEADER, PackedWeights
from satchel.compiler.weights import Bytes, FileRows, Matrix, Turns, Vector, Weight
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.files.gguf_writer import TensorData, write_gguf
from satchel.formats import by_name
from satchel.formats.packed import ROWS, packed
from satchel.graph.rope import Scaling
from satchel.runtime.objects import ObjectCache

ROW = 512
WEIGHTS: dict[str, Weight] = {
    "several": Matrix(("a", "b"), "Q4_1", (40, 16), ROW),
    "in_turn": Matrix(("c", "d"), "Q6_K", (39, 39), ROW, interleaved=True),
    "floats": Matrix(("e",), "F16", (7,), ROW),
    "norm": Vector(("n",), (ROW + 16,)),
    "turns": Turns(64, 32, 1e4, Scaling()),
    "table": FileRows("a", 40 * ROW // 32 * 20),
}
ROWS_OF = {
    "a": ("Q4_1", 40),
    "b": ("Q4_1", 16),
    "c": ("Q6_K", 39),
    "d": ("Q6_K", 39),
    "e": ("F16", 7),
}


@pytest.fixture
def model(tmp_path: Path) -> Checkpoint:
    return write_model(tmp_path / "model.gguf")


def write_model(path: Path, seed: int = 0) -> Checkpoint:
    rng = np.random.default_rng(seed)
    tensors = {
        name: TensorData(by_name(f), (n, ROW), random_weights.random_blocks(f, n, ROW, rng))
        for name, (f, n) in ROWS_OF.items()
    }
    norm = {"n": rng.standard_normal(ROW).astype(np.float32)}
    write_gguf(path, {"general.architecture": "llama"}, tensors | norm)
    return open_checkpoint(path)


def packed_weights(model: Checkpoint, folder: Path | None) -> PackedWeights:
    objects = ObjectCache(folder and folder / "code")
    return PackedWeights(model, WEIGHTS, folder, host_target(), objects)


def bytes_of(made: PackedWeights, name: str) -> Bytes:
    whole = made._bytes
    assert whole is not None
    at = made.addresses[name] - whole.ctypes.data
    return whole[at : at + WEIGHTS[name].bytes]


def by_numpy(model: Checkpoint, weight: Matrix) -> Bytes:
    """What the layout's definition makes of a matrix."""
    parts = [packed(weight.format).pack(model.raw(name)) for name in weight.tensors]
    if weight.interleaved:
        return np.stack(parts, axis=1).reshape(-1)
    return np.concatenate([p.reshape(-1) for p in parts])


def check(model: Checkpoint, made: PackedWeights) -> None:
    for name, weight in WEIGHTS.items():
        if isinstance(weight, FileRows):
            assert made.addresses[name] == model.raw(weight.tensor).ctypes.data
            continue
        right = by_numpy(model, weight) if isinstance(weight, Matrix) else weight.make(model)
        assert (bytes_of(made, name) == right).all(), name


def entries(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "packed").glob("*") if p.name != "lock")


@pytest.mark.parametrize("cached", [True, False])
def test_all_weights_are_right(model: Checkpoint, tmp_path: Path, cached: bool) -> None:
    made = packed_weights(model, tmp_path if cached else None)
    check(model, made)
    assert (made.path is not None) == cached
    assert all(a % 64 == 0 for name, a in made.addresses.items() if name != "table")


def test_made_once_and_then_mapped(
    model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = packed_weights(model, tmp_path)
    assert first.path is not None
    os.utime(first.path, (1, 1))
    monkeypatch.setattr(PackedWeights, "_make", None)  # would fail
    again = packed_weights(model, tmp_path)
    check(model, again)
    assert first.path.stat().st_mtime > 1  # used just now
    assert entries(tmp_path) == [first.path.name]


def test_another_file_has_an_entry_of_its_own(model: Checkpoint, tmp_path: Path) -> None:
    other = write_model(tmp_path / "other.gguf", seed=1)
    packed_weights(model, tmp_path)
    check(other, packed_weights(other, tmp_path))
    assert len(entries(tmp_path)) == 2


@pytest.mark.parametrize("damage", ["header", "shorter", "zeros", "last page", "empty"])
def test_damage_is_noticed_and_mended(model: Checkpoint, tmp_path: Path, damage: str) -> None:
    path = packed_weights(model, tmp_path).path
    assert path is not None
    whole = path.read_bytes()
    broken = {
        "header": b"x" + whole[1:],
        "shorter": whole[:-1],
        "zeros": whole[:HEADER] + bytes(len(whole) - HEADER),
        "last page": whole[:-1] + bytes([whole[-1] ^ 1]),
        "empty": b"",
    }[damage]
    path.write_bytes(broken)
    check(model, packed_weights(model, tmp_path))
    assert path.read_bytes() == whole


def test_least_recently_used_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [write_model(tmp_path / f"{i}.gguf", seed=i) for i in range(3)]
    paths = [packed_weights(m, tmp_path).path for m in models[:2]]
    for path, time in zip(paths, (2000, 1000), strict=True):
        assert path is not None
        os.utime(path, (time, time))
    size = HEADER + packing.offsets_of(WEIGHTS)[1]
    monkeypatch.setenv("SATCHEL_PACKED_LIMIT", str(2 * size))
    third = packed_weights(models[2], tmp_path)
    check(models[2], third)
    assert paths[0] is not None
    assert third.path is not None
    assert entries(tmp_path) == sorted([paths[0].name, third.path.name])


def test_over_the_limit_nothing_is_kept_or_lost(
    model: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    kept = packed_weights(model, tmp_path).path
    assert kept is not None
    monkeypatch.setenv("SATCHEL_PACKED_LIMIT", "1k")
    other = write_model(tmp_path / "other.gguf", seed=1)
    made = packed_weights(other, tmp_path)
    check(other, made)
    assert made.path is None
    assert entries(tmp_path) == [kept.name]
    assert "SATCHEL_PACKED_LIMIT" in capsys.readouterr().err


def test_a_full_disk_is_noticed_before(
    model: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    full = SimpleNamespace(total=1 << 40, used=1 << 40, free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)  # pyright: ignore
    check(model, packed_weights(model, tmp_path))
    assert entries(tmp_path) == []
    assert "free: 1 kB" in capsys.readouterr().err


def test_a_disk_that_fills_up_meanwhile(
    model: Checkpoint,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packing, "_allocate", full)
    check(model, packed_weights(model, tmp_path))
    assert entries(tmp_path) == []
    assert "No space left" in capsys.readouterr().err


def test_a_folder_that_is_a_file(
    model: Checkpoint, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "packed").write_text("in the way")
    check(model, packed_weights(model, tmp_path))
    assert "kept in memory alone" in capsys.readouterr().err


def test_without_fallocate(
    model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fallocate", raising=False)
    made = packed_weights(model, tmp_path)
    check(model, made)
    assert made.path is not None


def test_leftovers_of_a_dead_process_go(model: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    folder.mkdir()
    (folder / "half.weights.0123.tmp").write_bytes(bytes(100))
    made = packed_weights(model, tmp_path)
    assert made.path is not None
    assert entries(tmp_path) == [made.path.name]


RACER = """
import sys
from pathlib import Path
import tests.compiler.test_packing as t
from satchel.compiler.packing import PackedWeights
makes, old = [], PackedWeights._make
PackedWeights._make = lambda self, out: (makes.append(1), old(self, out))
model, folder = t.open_checkpoint(sys.argv[1]), Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
t.check(model, t.packed_weights(model, folder))
print(len(makes))
"""


@pytest.mark.slow
def test_racing_processes_make_it_once(model: Checkpoint, tmp_path: Path) -> None:
    root = str(Path(__file__).parents[2])
    environment = child_environment({"PYTHONPATH": os.pathsep.join([root, *sys.path])})
    command = [sys.executable, "-c", RACER, str(model.path), str(tmp_path)]
    racers = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in range(3)
    ]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    assert sum(int(racer.communicate()[0]) for racer in racers) == 1
    assert [racer.returncode for racer in racers] == [0, 0, 0]


def test_rows_beyond_the_matrix_are_blocks_of_zeros(model: Checkpoint) -> None:
    made = bytes_of(packed_weights(model, None), "floats").reshape(ROW, ROWS, 2)
    assert not made[:, 7:].any()
    assert made[:, :7].any()
