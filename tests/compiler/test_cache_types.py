"""Plans whose keys and values are kept in other types: sizes, keys, and the three invariants."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.archs import tiny
from tests.compiler.models import LIMITS, batch_of, logits_of, write_tiny
from tests.compiler.test_invariants import TEXT

from satchel.archs import trace
from satchel.compiler.limits import Limits
from satchel.compiler.model import CompiledModel, host_target, load_model
from satchel.compiler.pipeline import compile_graph
from satchel.compiler.plan_cache import ready_key
from satchel.files.checkpoint import open_checkpoint
from satchel.kernels.cache_types import CACHE_TYPES, F16
from satchel.kernels.pages import page_bytes
from satchel.measure.accuracy import agreement
from satchel.measure.work import work_of
from satchel.runtime.batch import PAGE
from satchel.text import load_tokenizer

Types = tuple[str, str]
SOME: list[Types] = [("int8", "int4"), ("int4-rot", "bf16")]


def limits(types: Types) -> Limits:
    return Limits(64, 256, 8, 4, types)


def test_bytes_of_a_token() -> None:
    """Of a head with 64 dims: numbers, and scales of two bytes."""
    sizes = {"f16": 128, "bf16": 128, "int8": 64 + 2, "int4": 32 + 2 * 2, "int4-rot": 32 + 2 * 2}
    assert sizes.keys() == set(CACHE_TYPES)
    for k, k_bytes in sizes.items():
        for v, v_bytes in sizes.items():
            assert page_bytes(3, 64, (k, v)) == 3 * PAGE * (k_bytes + v_bytes)


@pytest.mark.parametrize("types", SOME, ids="-".join)
def test_a_plan_has_pages_of_its_types(types: Types, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_tiny("llama-yarn", tmp_path / "m.gguf"))
    graph, target = trace(checkpoint), host_target()
    lowered = compile_graph(graph, target, limits(types))
    assert lowered.plan.buffer("kv.0").bytes == 8 * page_bytes(2, 32, types)
    layers = work_of(graph, lowered).attention.values()
    assert {layer.kv_bytes for layer in layers} == {page_bytes(2, 32, types) // PAGE}
    keys = {ready_key(checkpoint, target, limits(t)) for t in (*SOME, (F16, F16))}
    assert len(keys) == len(SOME) + 1
    plain = compile_graph(graph, target, limits((F16, F16))).plan
    assert str(plain) == str(compile_graph(graph, target, LIMITS).plan)


@pytest.mark.slow
@pytest.mark.parametrize("types", [*SOME, ("int4", "int4-rot"), ("bf16", "int8")], ids="-".join)
@pytest.mark.parametrize("case", ["llama-yarn", "gemma3-capped"])
def test_tiny_models_come_near_f16_and_keep_their_bits(
    case: str, types: Types, tmp_path: Path, cache: Path
) -> None:
    checkpoint, ids = open_checkpoint(write_tiny(case, tmp_path / "m.gguf")), tiny.tokens(case)
    found: dict[Types, list[np.ndarray]] = {}
    for each in ((F16, F16), types):
        with load_model(
            checkpoint, context=256, threads=2, n_pages=8, cache=cache, cache_types=each
        ) as model:
            found[each] = [logits_of(model, ids, chunks) for chunks in ([], [1] * len(ids), [5, 9])]
        assert all(np.array_equal(found[each][0], other) for other in found[each][1:])
    near = agreement(found[F16, F16][0], found[types][0])
    assert 0 < near.mean_kl < 0.1, near


# ---- a real model


@pytest.fixture(scope="module", params=[("int8", "int4"), ("int4-rot", "int4-rot")], ids="-".join)
def types(request: pytest.FixtureRequest) -> Types:
    return request.param


@pytest.fixture(scope="module")
def ids(smollm2: Path) -> list[int]:
    return load_tokenizer(open_checkpoint(smollm2).metadata).encode(TEXT)[:100]


@pytest.fixture(scope="module")
def model(smollm2: Path, types: Types) -> Iterator[CompiledModel]:
    with load_model(
        open_checkpoint(smollm2), context=1024, threads=2, n_pages=32, cache_types=types
    ) as model:
        yield model


@pytest.mark.slow
def test_no_chunk_and_no_page_changes_a_bit(model: CompiledModel, ids: list[int]) -> None:
    want = logits_of(model, ids)
    assert np.isfinite(want).all()
    assert np.array_equal(logits_of(model, ids, chunks=[1] * len(ids), pages=[7, 3]), want)
    assert np.array_equal(logits_of(model, ids, chunks=[3, 40, 21], pages=[2, 5]), want)


@pytest.mark.slow
def test_no_company_changes_a_bit(model: CompiledModel, ids: list[int]) -> None:
    want = logits_of(model, ids)
    tables = np.array([[6, 1], [0, 7]], np.int32)
    for at in range(0, 80, 20):
        both = model.run(batch_of([(ids[at : at + 20], at), (ids[at : at + 10], at)], tables))
        assert np.array_equal(both[:20], want[at : at + 20])
        assert np.array_equal(both[20:], want[at : at + 10])
        rest = batch_of([(ids[at + 10 : at + 20], at + 10)], tables[1:], wanted=False)
        model.run(rest)


@pytest.mark.slow
def test_no_number_of_threads_changes_a_bit(
    smollm2: Path, model: CompiledModel, ids: list[int], types: Types
) -> None:
    """A past so long that its segments are shared among workers, too."""
    long = (ids * 6)[:580]
    want = logits_of(model, long)
    with load_model(
        open_checkpoint(smollm2), context=1024, threads=3, n_pages=32, cache_types=types
    ) as other:
        assert np.array_equal(logits_of(other, long, chunks=[64] * 8 + [1] * 20), want)
