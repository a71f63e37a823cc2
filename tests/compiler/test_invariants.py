"""What no thread, tile, chunk, company or page changes: the bits of real models' logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.compiler.models import Logits, batch_of, logits_of

from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.machine.tiles import Tiles
from satchel.measure.accuracy import agreement, reference_logits
from satchel.text import load_tokenizer

TEXT = """The lighthouse had stood on the rock for two hundred years, and for most of them a keeper
climbed its stairs each evening. When the lamp was made automatic, the last keeper stayed on in the
village below and told anyone who would listen that the sea had not been fooled. "It knows," she
said, "when nobody is watching." The children laughed, but on nights of heavy weather they looked up
at the turning light and counted the seconds between flashes: one, two, three, four, five. In 1987,
during the great storm, it went dark for eleven minutes. The coast guard's report blames a relay."""
N = 100
few = settings(
    max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module", params=["smollm2", "gemma3"])
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def path(name: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(name)


@pytest.fixture(scope="module")
def ids(path: Path) -> list[int]:
    tokenizer = load_tokenizer(open_checkpoint(path).metadata)
    return tokenizer.encode(TEXT, add_bos=tokenizer.add_bos)


@pytest.fixture(scope="module")
def model(path: Path) -> Iterator[CompiledModel]:
    with load_model(open_checkpoint(path), context=256, threads=2, n_pages=8) as model:
        yield model


@pytest.fixture(scope="module")
def want(model: CompiledModel, ids: list[int]) -> Logits:
    return logits_of(model, ids[:N])


@pytest.mark.slow
def test_near_the_reference(path: Path, name: str, model: CompiledModel, ids: list[int]) -> None:
    """Against a float64 reading of the graph, on real text."""
    got = agreement(reference_logits(open_checkpoint(path), ids[:128]), logits_of(model, ids[:128]))
    assert got.n >= 110
    assert got.mean_kl < {"smollm2": 2.6e-3, "gemma3": 3e-3}[name], got
    assert got.top1 >= 0.95, got


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3, 4])
def test_threads_change_no_bit(path: Path, want: Logits, ids: list[int], threads: int) -> None:
    with load_model(open_checkpoint(path), context=256, threads=threads, n_pages=8) as model:
        assert np.array_equal(logits_of(model, ids[:N]), want)


@pytest.mark.slow
@pytest.mark.parametrize(
    "tiles",
    [
        Tiles(tokens=6, ahead_bytes=0, longest_run=24, queries=4),
        Tiles(tokens=12, ahead_bytes=6144, run_bytes=1 << 14, queries=9),
    ],
    ids=["narrow", "wide"],
)
def test_tiles_change_no_bit(path: Path, want: Logits, ids: list[int], tiles: Tiles) -> None:
    """More of them, on more targets: tests/kernels/test_tiles.py."""
    with load_model(open_checkpoint(path), context=256, n_pages=8, tiles=tiles) as model:
        assert np.array_equal(logits_of(model, ids[:N], chunks=[1, 2, 7, 13]), want)


@pytest.mark.slow
def test_one_at_a_time_changes_no_bit(model: CompiledModel, want: Logits, ids: list[int]) -> None:
    assert np.array_equal(logits_of(model, ids[:N], chunks=[1] * N), want)


@pytest.mark.slow
@few
@given(st.lists(st.integers(1, 40), max_size=12), st.permutations(range(8)))
def test_chunks_and_pages_change_no_bit(
    model: CompiledModel, want: Logits, ids: list[int], chunks: list[int], pages: list[int]
) -> None:
    assert np.array_equal(logits_of(model, ids[:N], chunks=chunks, pages=pages[:2]), want)


@pytest.mark.slow
@few
@given(st.data())
def test_company_changes_no_bit(
    model: CompiledModel, want: Logits, ids: list[int], data: st.DataObject
) -> None:
    """Three sequences of one beginning advance side by side, each by as much as it likes."""
    tables = np.array([[6, 1], [0, 7], [3, 2]], np.int32)
    at = [0, 0, 0]
    ends = [60, 33, N]
    while at != ends:
        order = data.draw(st.permutations([i for i in range(3) if at[i] < ends[i]]))
        sizes = {i: min(data.draw(st.integers(1, 21)), ends[i] - at[i]) for i in order}
        parts = [(ids[at[i] : at[i] + sizes[i]], at[i]) for i in order]
        got = model.run(batch_of(parts, tables[order], groups=len(model.groups)))
        wanted = np.concatenate([want[at[i] : at[i] + sizes[i]] for i in order])
        assert np.array_equal(got, wanted), order
        for i in order:
            at[i] += sizes[i]


@pytest.mark.slow
def test_another_target_keeps_its_own_bits(smollm2: Path) -> None:
    """Bits may differ between targets, but not within one."""
    checkpoint = open_checkpoint(smollm2)
    tokenizer = load_tokenizer(checkpoint.metadata)
    ids = tokenizer.encode(TEXT)[:48]
    runs: list[NDArray[np.float32]] = []
    for threads, chunks in ((1, [48]), (2, [1] * 48), (2, [5, 9, 1])):
        with load_model(checkpoint, context=128, threads=threads, target=another_target()) as model:
            runs.append(logits_of(model, ids, chunks=chunks))
    assert all(np.array_equal(runs[0], other) for other in runs[1:])


def another_target() -> str:
    """A lesser target of this machine."""
    from satchel.compiler.model import host_target

    best = host_target()
    return {"x86": "x86-avx2" if best.bits == 512 else "x86-base", "arm": "arm-neon"}[best.isa]
