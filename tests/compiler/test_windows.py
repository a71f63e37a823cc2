"""Layers with a window read their window's pages and no others, and give the same bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.archs import tiny
from tests.compiler.models import Logits, batch_of, logits_of, write_tiny

from satchel.compiler.limits import Limits, group_pages
from satchel.compiler.model import CompiledModel, load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.runtime.batch import NO_PAGE, PAGE, Batch


def sliding(model: CompiledModel, tokens: list[int], chunk: int) -> Logits:
    """The logits of each chunk's last token where each group has no pages but those that its
    window reaches, taken in turn.
    """
    rows: list[Logits] = []
    for at in range(0, len(tokens), chunk):
        end = min(at + chunk, len(tokens))
        places, tables = np.arange(-(-end // PAGE)), list[NDArray[np.int32]]()
        for group in model.groups:
            seen = places >= group.first_seen(at) // PAGE
            tables.append(np.where(seen, places % group.n_pages, NO_PAGE)[None].astype(np.int32))
        plain = batch_of([(tokens[at:end], at)], tables[0])
        last = np.array([end - at - 1], np.int32)
        batch = Batch(plain.tokens, plain.positions, plain.sequences, tuple(tables), last)
        rows.append(model.run(batch).copy())
    return np.concatenate(rows)


def last_rows(logits: Logits, chunk: int) -> Logits:
    n = len(logits)
    return logits[[min(at + chunk, n) - 1 for at in range(0, n, chunk)]]


@pytest.mark.parametrize("case", ["gemma3", "mistral"])
@pytest.mark.parametrize("chunk", [1, 7, 50])
def test_pages_before_the_window_are_not_read(
    case: str, chunk: int, tmp_path: Path, cache: Path
) -> None:
    checkpoint = open_checkpoint(write_tiny(case, tmp_path / "model.gguf"))
    tokens = (tiny.tokens(case) * 20)[:250]
    with load_model(checkpoint, context=256, max_batch=64, n_pages=8, cache=cache) as model:
        want = logits_of(model, tokens)
        assert [group.window for group in model.groups] == {
            "gemma3": [6, None],
            "mistral": [5],
        }[case]
    with load_model(checkpoint, context=256, max_batch=64, n_pages=4, cache=cache) as model:
        assert model.groups[0].n_pages == 3  # a window and a chunk of 64 never lie in more
        for _ in range(2):  # the second time, all pages hold what others left there
            assert np.array_equal(sliding(model, tokens, chunk), last_rows(want, chunk))


def test_how_many_pages_a_window_needs() -> None:
    limits = Limits(max_batch=512, context=4096, n_pages=4 * 64, max_sequences=64)
    assert group_pages(limits, None) == 256
    assert group_pages(limits, 512) == 4 * 17
    assert group_pages(limits, 10_000) == 256
    few = Limits(max_batch=512, context=100, n_pages=1, max_sequences=64)
    assert group_pages(few, 512) == 1


@pytest.mark.slow
def test_a_real_model_whose_window_slides(gemma3: Path) -> None:
    """Gemma 3 over 720 tokens, in chunks of any size, with pages for one window and one chunk."""
    checkpoint = open_checkpoint(gemma3)
    tokens = np.random.default_rng(0).integers(5, 200_000, 720).tolist()
    with load_model(checkpoint, context=768, max_batch=64, n_pages=12, threads=2) as model:
        assert [(group.window, group.n_pages) for group in model.groups] == [(512, 10), (None, 12)]
        got = sliding(model, tokens, 60)
        assert np.array_equal(sliding(model, tokens, 30)[1::2], got)
    # pages enough, so that none is ever used twice
    with load_model(checkpoint, context=768, max_batch=64, n_pages=24, threads=2) as model:
        assert model.groups[0].n_pages >= 12
        assert np.array_equal(sliding(model, tokens, 60), got)
