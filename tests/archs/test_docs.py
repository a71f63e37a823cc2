"""The worked example of docs/adding-an-arch.md traces, evaluates and runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from satchel.archs import base
from satchel.compiler.model import load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.files.gguf import TensorData, write_gguf
from satchel.formats import F32
from satchel.measure.accuracy import reference_logits
from satchel.runtime.batch import Batch

PAGE = Path(__file__).parents[2] / "docs" / "adding-an-arch.md"
DIM, FFN, HEADS, KV, VOCAB = 32, 64, 4, 2, 48


def write_olmo2(path: Path) -> None:
    """One layer of random weights."""
    kv_dim = DIM // HEADS * KV
    shapes = {
        "token_embd": (VOCAB, DIM), "output": (VOCAB, DIM), "output_norm": (DIM,),
        "blk.0.attn_q": (DIM, DIM), "blk.0.attn_k": (kv_dim, DIM), "blk.0.attn_v": (kv_dim, DIM),
        "blk.0.attn_output": (DIM, DIM), "blk.0.attn_q_norm": (DIM,),
        "blk.0.attn_k_norm": (kv_dim,), "blk.0.post_attention_norm": (DIM,),
        "blk.0.post_ffw_norm": (DIM,), "blk.0.ffn_gate": (FFN, DIM), "blk.0.ffn_up": (FFN, DIM),
        "blk.0.ffn_down": (DIM, FFN),
    }  # fmt: skip
    rng = np.random.default_rng(2)
    tensors = {
        f"{name}.weight": TensorData.encoded(F32, rng.standard_normal(shape).astype(np.float32))
        for name, shape in shapes.items()
    }
    metadata = {
        "general.architecture": "olmo2", "olmo2.block_count": 1, "olmo2.context_length": 64,
        "olmo2.embedding_length": DIM, "olmo2.feed_forward_length": FFN,
        "olmo2.attention.head_count": HEADS, "olmo2.attention.head_count_kv": KV,
        "olmo2.attention.layer_norm_rms_epsilon": np.float32(1e-6),
        "olmo2.rope.freq_base": np.float32(10000.0),
    }  # fmt: skip
    write_gguf(path, metadata, tensors)


def test_the_example_runs(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "_REGISTRY", dict(base._REGISTRY))
    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    exec(compile("\n".join(code), PAGE.name, "exec"), {"__name__": "example"})
    write_olmo2(tmp_path / "olmo2.gguf")
    checkpoint = open_checkpoint(tmp_path / "olmo2.gguf")
    tokens = [3, 14, 15, 9, 2, 6]
    want = reference_logits(checkpoint, tokens)
    n = np.arange(len(tokens), dtype=np.int32)
    with load_model(checkpoint, context=64, threads=1, cache=cache) as model:
        batch = Batch(
            np.array(tokens, np.int32), n, np.zeros_like(n), (np.zeros((1, 1), np.int32),), n
        )
        got = model.run(batch)
    assert np.abs(got - want).max() < 1e-3 * np.abs(want).max()  # f16 keys and values
