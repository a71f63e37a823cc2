"""Tokens are forgotten, the others move up: a model goes on as if these had been all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.archs import tiny
from tests.compiler.models import batch_of, logits_of, write_tiny

from satchel.compiler.model import CompiledModel, load_model
from satchel.engine.pages import PagePool, Pages
from satchel.files.checkpoint import open_checkpoint

# the keys of a model of one layer depend on nothing but the token and its place
CASES = ("llama", "llama-yarn", "llama-llama3", "qwen2", "qwen3")
QUICK = ("llama-yarn", "qwen3")
KEPT = [*range(4), 9, 10, 33, *range(70, 110)]


def forget(model: CompiledModel, kept: list[int], n: int) -> list[Pages]:
    """Has a sequence in pages 0, 1, ... keep these of its n tokens; its pages after that."""
    held: list[Pages] = []
    for group in model.groups:
        pages = Pages(PagePool(group))
        pages.grow(n)
        held.append(pages)
    model.move([pages.forget(np.array(kept)) for pages in held])
    return held


@pytest.mark.parametrize(
    "case",
    [pytest.param(c, marks=[] if c in QUICK else pytest.mark.slow) for c in CASES],
)
def test_a_model_goes_on_with_what_stays(
    case: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(tiny.MODELS, case, {**tiny.MODELS[case], "num_hidden_layers": 1})
    checkpoint = open_checkpoint(write_tiny(case, tmp_path / "model.gguf"))
    tokens = (tiny.tokens(case) * 4)[:110]
    more = tokens[5:25]
    with load_model(
        checkpoint, context=256, threads=2, max_batch=64, cache=cache, moves=True
    ) as model:
        want = logits_of(model, [*(tokens[i] for i in KEPT), *more])[len(KEPT) :]
        logits_of(model, tokens)
        (pages,) = forget(model, KEPT, len(tokens))
        pages.grow(len(KEPT) + len(more))
        table = np.array([pages.row(2)], np.int32)
        got = model.run(batch_of([(more, len(KEPT))], table))
        assert np.abs(got - want).max() < 4e-3 * np.abs(want).max()


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_what_does_not_move_keeps_its_bits(tmp_path: Path, cache: Path, threads: int) -> None:
    """All layers, and both groups of one with windows: only to other pages, and back again."""
    checkpoint = open_checkpoint(write_tiny("gemma3", tmp_path / "model.gguf", "Q8_0"))
    tokens, n = (tiny.tokens("gemma3") * 4)[:100], 80
    with load_model(
        checkpoint, context=128, threads=threads, max_batch=64, n_pages=8, cache=cache,
        moves=True, weighs=True,
    ) as model:  # fmt: skip
        want = logits_of(model, tokens)[n:]
        logits_of(model, tokens[:n])
        before = model.mass([0, 1])
        window, full = forget(model, list(range(n)), n)
        assert np.array_equal(model.mass(full.ids)[:n], before[:n])
        for pages in (window, full):
            pages.grow(len(tokens))
        tables = tuple(np.array([pages.row(2)], np.int32) for pages in (window, full))
        plain = batch_of([(tokens[n:], n)], tables[0], groups=2)
        got = model.run(replace(plain, tables=tables))
        assert np.array_equal(got, want)


def test_attention_is_weighed_alike_in_any_batch(tmp_path: Path, cache: Path) -> None:
    checkpoint = open_checkpoint(write_tiny("llama", tmp_path / "model.gguf", "Q8_0"))
    tokens = (tiny.tokens("llama") * 4)[:90]
    found: list[np.ndarray] = []
    for threads, chunks in ((1, [64, 26]), (3, [1] * 90), (2, [7, 50, 33])):
        with load_model(
            checkpoint, context=128, threads=threads, max_batch=64, cache=cache, weighs=True
        ) as model:
            logits_of(model, tokens, chunks=chunks)
            found.append(model.mass([0, 1])[:90])
    assert all(np.array_equal(found[0], other) for other in found)
    # 2 layers of 4 heads give each query's weights, 1 in all
    assert found[0].sum() == pytest.approx(90 * 2 * 4, rel=1e-5)
    assert found[0].argmax() == 0
