"""Files with the shape of a real model and random weights."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from satchel import formats
from satchel.base.errors import OptionError
from satchel.compiler.model import load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.measure import shapes
from satchel.measure.bench import Runner
from satchel.measure.shapes import RECIPES, SHAPES, Shape, shape_file, write_shape
from satchel.text import load_tokenizer

TOYS = {
    "toy": Shape("llama", 8, 256, 512, 4, 2, 64, 512, "llama-bpe", 256, 1e4, rope_factors=True),
    "toy-qwen": Shape(
        "qwen2", 2, 128, 256, 2, 1, 64, 300, "qwen2", 256, 1e4, tied=False, biased=True
    ),
}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, shape in TOYS.items():
        monkeypatch.setitem(SHAPES, name, shape)


@pytest.mark.parametrize("shape", TOYS)
def test_a_file_runs(shape: str, tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.gguf"
    write_shape(path, shape, "q4_0")
    checkpoint = open_checkpoint(path)
    with load_model(checkpoint, context=64, threads=1, cache=cache) as model:
        assert model.vocab_size == TOYS[shape].vocab_size
        logits = model.run(Runner(model).batch(0, 8))
        assert np.isfinite(logits).all()
        assert logits.std() > 0
    tokenizer = load_tokenizer(checkpoint.metadata)
    assert tokenizer.decode(tokenizer.encode("at the\n é")) == "at the\n é"


def test_q4_k_m_is_mixed_as_by_llama_cpp(tmp_path: Path) -> None:
    """Its quantizer's rule for 8 layers: the first, the last, and 3 and 6 get more bits."""
    path = tmp_path / "a.gguf"
    write_shape(path, "toy", "Q4_K_M")
    checkpoint = open_checkpoint(path)
    more = {n for n in checkpoint.names if checkpoint.tensor(n).format.name == "Q6_K"}
    wanted = {f"blk.{i}.{name}.weight" for i in (0, 3, 6, 7) for name in ("attn_v", "ffn_down")}
    assert more == wanted | {"token_embd.weight"}
    others = Counter(checkpoint.tensor(n).format.name for n in {*checkpoint.names} - more)
    assert others == {"Q4_K": 7 * 8 - 8, "F32": 2 * 8 + 2}


def test_rows_that_are_not_whole_blocks() -> None:
    """SmolLM2's 576 columns are no whole blocks of 256."""
    recipe, shape = RECIPES["q4_k_m"], SHAPES["smollm2-135m"]
    assert recipe.format("blk.5.attn_q.weight", 576, shape).name == "Q5_0"
    assert recipe.format("blk.0.attn_v.weight", 576, shape).name == "Q8_0"
    assert recipe.format("token_embd.weight", 576, shape).name == "Q8_0"
    assert recipe.format("blk.5.ffn_down.weight", 1536, shape).name in ("Q4_K", "Q6_K")


@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K", "F16"])
def test_random_blocks_are_of_sane_scale(name: str) -> None:
    block, draw = formats.by_name(name), np.random.default_rng(1)
    weights = block.decode(shapes.random_blocks(block, 4096, draw, deviation=0.03))
    assert abs(weights.mean()) < 0.004
    assert weights.std() == pytest.approx(0.03, rel=0.1)


def test_no_two_rows_are_alike() -> None:
    raw = shapes.RandomBlocks().matrix(formats.by_name("Q4_0"), 500, 256).raw
    assert len(np.unique(raw, axis=0)) == 500


def test_a_file_is_kept_or_removed(tmp_path: Path) -> None:
    with shape_file("toy", "q8_0") as path:
        assert path.is_file()
    assert not path.exists()
    kept = tmp_path / "kept.gguf"
    with shape_file("toy", "q8_0", kept) as path:
        assert path == kept
    written = kept.stat().st_mtime_ns
    with shape_file("toy", "q8_0", kept):
        assert kept.stat().st_mtime_ns == written  # not written again
    with pytest.raises(OptionError, match="another model"), shape_file("toy", "q4_0", kept):
        pass


def test_what_does_not_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.gguf"
    with pytest.raises(OptionError, match=r"no shape 'x'; there are smollm2-135m"):
        write_shape(path, "x", "q4_0")
    with pytest.raises(OptionError, match=r"no format 'q9'"):
        write_shape(path, "toy", "q9")
    with pytest.raises(OptionError, match="can't be used"):
        write_shape(tmp_path / "none" / "a.gguf", "toy", "q4_0")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1_000_000))
    with pytest.raises(OptionError, match=r"takes \d+ MB, and .* has 1 MB free"):
        write_shape(path, "toy", "q4_0")
    assert not list(tmp_path.iterdir())


def test_the_sizes_of_real_models() -> None:
    weights = {
        name: sum(rows * columns for _, (rows, columns) in shape.matrices())
        for name, shape in SHAPES.items()
    }
    assert weights["smollm2-135m"] == pytest.approx(134.5e6, rel=0.01)
    assert weights["llama-3.2-1b"] == pytest.approx(1.236e9, rel=0.01)
    assert weights["qwen2.5-7b"] == pytest.approx(7.615e9, rel=0.01)
