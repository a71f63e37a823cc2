"""The plan cache: what is restored is what was kept, and a warm start makes nothing anew."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.archs import tiny
from tests.compiler.models import write_tiny

from satchel.compiler import plan_cache
from satchel.compiler.limits import Limits
from satchel.compiler.model import host_target, load_model
from satchel.compiler.pipeline import prepare
from satchel.compiler.plan_cache import find_ready, parse_ready, ready_key
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.lang.target import TARGETS
from satchel.machine.tiles import Tiles
from satchel.runtime.objects import ObjectCache

LIMITS = Limits(32, 64, 2, 4)


@pytest.fixture(params=sorted(tiny.MODELS))
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_tiny(request.param, tmp_path / "model.gguf"))


def test_text_reads_back(model: Checkpoint, cache: Path) -> None:
    ready, _ = prepare(model, host_target(), LIMITS, ObjectCache(cache))
    again = parse_ready(str(ready))
    assert again == ready
    # the packed weights' key is made of this
    assert repr(again.weights) == repr(ready.weights)


def test_found_with_all_its_objects_or_not_at_all(
    model: Checkpoint, tmp_path: Path, cache: Path
) -> None:
    objects = ObjectCache(tmp_path)
    _, code = prepare(model, host_target(), LIMITS, ObjectCache(cache))
    for name, data in code.items():
        objects.store(name, data)
    key = ready_key(model, host_target(), LIMITS)
    assert find_ready(key, objects) is None
    ready, code = prepare(model, host_target(), LIMITS, objects)
    objects.store(key, str(ready).encode())
    assert find_ready(key, objects) == (ready, code)
    lost = next(iter(code))
    (tmp_path / "objects" / f"{lost}.o").unlink()
    assert find_ready(key, objects) is None


def test_the_key_names_all_that_decides(
    model: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = open_checkpoint(write_tiny("llama", tmp_path / "other.gguf"))
    foreign = next(t for t in TARGETS.values() if t != host_target())
    keys = [
        ready_key(model, host_target(), LIMITS),
        ready_key(other, host_target(), LIMITS),
        ready_key(model, foreign, LIMITS),
        ready_key(model, host_target(), Limits(32, 128, 2, 4)),
        ready_key(model, host_target(), LIMITS, Tiles(ahead_bytes=0)),
    ]
    monkeypatch.setattr(plan_cache, "plan_digest", lambda: "another source")
    keys.append(ready_key(model, host_target(), LIMITS))
    assert len(set(keys)) == len(keys)


WARM = """
import sys
from pathlib import Path
from satchel.compiler.model import load_model
from satchel.files.checkpoint import open_checkpoint
load_model(open_checkpoint(sys.argv[1]), context=64, threads=1, cache=Path(sys.argv[2])).close()
late = ("satchel.archs", "satchel.compiler.lower", "satchel.kernels.matmul", "llvmlite")
print([name for name in late if name in sys.modules])
"""


def test_a_warm_start_imports_no_compiler(tmp_path: Path) -> None:
    path = write_tiny("llama", tmp_path / "model.gguf")
    with load_model(open_checkpoint(path), context=64, threads=1, cache=tmp_path) as model:
        assert model.lowered.plan.steps
    command = [sys.executable, "-c", WARM, str(path), str(tmp_path)]
    assert subprocess.run(command, capture_output=True, check=True).stdout.strip() == b"[]"


def test_another_context_packs_no_matrix_anew(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny("llama", tmp_path / "model.gguf"))

    def packed(context: int) -> set[Path]:
        with load_model(checkpoint, context=context, threads=1, cache=tmp_path) as model:
            return set(model.packed_files)

    assert len(packed(64) & packed(128)) == 1
    assert len(packed(64) | packed(128)) == 3  # of these, two with the turns of a context
