"""Forecasts of memory: their parts, how they are made to fit, and what the kernel says at last."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compiler.models import write_tiny
from tests.measure import tiny

from satchel.base.errors import MemoryLimitError
from satchel.engine import ledger
from satchel.engine.budget import GROWTH_BYTES, room_in
from satchel.engine.cache_loss import Loss
from satchel.engine.ledger import LEAST_CONTEXT, Ledger
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.measure.shapes import write_shape
from satchel.runtime.batch import PAGE

KV_BYTES = tiny.LAYERS * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * 2  # of a token, in f16
INT8 = "int8", "int8"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("model")
    return open_checkpoint(tiny.write_tiny(folder / "model.gguf"))


@pytest.fixture(scope="module")
def book(checkpoint: Checkpoint) -> Ledger:
    return Ledger(checkpoint)


def test_the_parts(book: Ledger, checkpoint: Checkpoint) -> None:
    short, long, two = book.forecast(64), book.forecast(256), book.forecast(256, 2)
    assert (short.kv, long.kv, two.kv) == tuple(n * KV_BYTES for n in (64, 256, 512))
    assert short.weights < long.weights == two.weights  # with them lie the turns of all positions
    assert checkpoint.n_bytes * 0.8 < short.weights < checkpoint.n_bytes * 3
    assert 0 < short.activations <= long.activations
    assert short.process > GROWTH_BYTES
    assert long.total == long.weights + long.kv + long.activations + long.process
    assert long.packing > long.process
    assert long.kv_groups == ((None, long.kv),)


def test_layers_with_a_window_have_pages_for_it_alone(tmp_path: Path) -> None:
    path = write_tiny("gemma3", tmp_path / "model.gguf")
    found = Ledger(open_checkpoint(path)).forecast(4096, 2)
    groups = dict(found.kv_groups)
    assert sum(groups.values()) == found.kv
    (window,) = (window for window in groups if window is not None)
    assert groups[window] < groups[None]


def fit(book: Ledger, room: int, **asked: Any) -> tuple[ledger.Forecast, list[str]]:
    """What becomes of it with so much memory, and what is left alone."""
    memory = -(-100 * room // 97)
    assert room_in(memory) == room
    said: list[str] = []
    given = asked.pop("context_is_given", False)
    wanted = book.forecast(**{"context": 2048, "parallel": 4, **asked})
    return book.fit(memory, wanted, said.append, context_is_given=given), said


@pytest.fixture
def harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values in int8 are known to lose little."""
    monkeypatch.setattr(ledger, "cache_loss", lambda *_: Loss(0.001, "a test"))


@pytest.fixture
def harmful(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "cache_loss", lambda *_: Loss(1.0, "a test"))


def test_what_fits_stays_as_it_is(book: Ledger) -> None:
    wanted = book.forecast(2048, 4)
    assert fit(book, wanted.total) == (wanted, [])


def test_first_fewer_have_room_at_a_time(book: Ledger) -> None:
    found, (line,) = fit(book, book.forecast(2048, 3).total - 1)
    assert found == book.forecast(2048, 2)
    assert line.endswith("2 sequences of full length have room at a time, not 4")


@pytest.mark.usefixtures("harmless")
def test_then_keys_and_values_become_smaller(book: Ledger) -> None:
    found, (_, line) = fit(book, book.forecast(2048).total - 1, context_is_given=True)
    assert found == book.forecast(2048, 1, INT8)
    assert line.endswith("int8 is the type of keys and values, not f16")


@pytest.mark.usefixtures("harmless")
def test_then_the_context_becomes_shorter(book: Ledger) -> None:
    found, said = fit(book, book.forecast(1024, 1, INT8).total)
    assert found == book.forecast(1024, 1, INT8)
    assert len(said) == 3
    assert said[-1].endswith("1024 tokens are the context, not 2048")
    shorter, _ = fit(book, book.forecast(1024, 1, INT8).total - 1)
    assert shorter == book.forecast(1024 - PAGE, 1, INT8)


@pytest.mark.usefixtures("harmful")
def test_what_loses_too_much_is_not_chosen(book: Ledger) -> None:
    found, _ = fit(book, book.forecast(1024).total)
    assert found == book.forecast(1024)


@pytest.mark.usefixtures("harmless")
def test_what_the_user_gave_is_kept_or_refused(book: Ledger) -> None:
    with pytest.raises(MemoryLimitError, match=r"for a context of 2048 tokens, and .* are allowed"):
        fit(book, book.forecast(1024).total, context_is_given=True)
    found, _ = fit(book, book.forecast(1024).total, cache_types=("bf16", "f16"))
    assert found == book.forecast(1024, 1, ("bf16", "f16"))
    with pytest.raises(MemoryLimitError, match=r"weights .*, KV cache .*, activations .*, Python"):
        fit(book, book.forecast(LEAST_CONTEXT, 1, INT8).total - 1)


CHILD = """
import json, sys
import numpy as np
import satchel
from satchel.compiler.weights import FileRows
from satchel.machine.memory import resident_bytes
from satchel.runtime.batch import PAGE, Batch

given = json.loads(sys.argv[1])
threads = given.pop("threads", 2)
told = satchel.forecast(**given)
llm = satchel.load(**given, threads=threads)
llm.embed("the embedding of a text")
model = llm._speaker.model
n = min(model.max_batch, model.context_length)
steps = np.arange(n, dtype=np.int32)
tables = tuple(np.arange(-(-n // PAGE), dtype=np.int32)[None] for _ in model.groups)
model.run(Batch(steps, steps, np.zeros_like(steps), tables, steps[:64], steps))
for memory in model._memories.values():
    memory.array(np.uint8, memory.n_bytes)[:: 4096] += 0
for packed in model._packed:
    packed._bytes[::4096].sum()
    for weight in packed._weights.values():
        if isinstance(weight, FileRows):
            model.checkpoint.raw(weight.tensor)[:, ::64].sum()
print(json.dumps([told.total, resident_bytes(), str(told)]))
"""


@pytest.fixture(scope="session")
def slice_of_1b(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in the shape of two layers of Llama 3.2 1B."""
    path = tmp_path_factory.mktemp("shape") / "slice.gguf"
    write_shape(path, "llama-3.2-1b-slice", "q4_0")
    return path


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    @pytest.mark.slow
    @pytest.mark.parametrize(
        "settings",
        [
            {"context": 1024, "parallel": 1},
            {"context": 4096, "parallel": 4},
            {"context": 2048, "parallel": 3, "cache_type_k": "int8", "cache_type_v": "int8"},
            {"parallel": 2, "threads": 1},
        ],
        ids=["small", "large", "int8", "one thread"],
    )
    @pytest.mark.parametrize("name", ["smollm2", "gemma3", "slice_of_1b"])
    def test_the_kernel_agrees(
        name: str, settings: dict[str, Any], request: pytest.FixtureRequest
    ) -> None:
        """All memory is used once, in a process of its own; then the two differ by 5 % at most."""
        given = json.dumps({"model": str(request.getfixturevalue(name)), **settings})
        done = subprocess.run([sys.executable, "-c", CHILD, given], capture_output=True, text=True,
                              check=False, timeout=300)  # fmt: skip
        assert done.returncode == 0, done.stderr
        told, resident, parts = json.loads(done.stdout)
        assert told == pytest.approx(resident, rel=0.05), parts
