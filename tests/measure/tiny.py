"""A tiny model file with random weights."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from satchel import formats
from satchel.files.gguf import TensorData, write_gguf

DIM, FFN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB = 64, 96, 2, 1, 32, 2, 128
SHAPES = {
    "attn_q": (HEADS * HEAD_DIM, DIM),
    "attn_k": (KV_HEADS * HEAD_DIM, DIM),
    "attn_v": (KV_HEADS * HEAD_DIM, DIM),
    "attn_output": (DIM, HEADS * HEAD_DIM),
    "ffn_gate": (FFN, DIM),
    "ffn_up": (FFN, DIM),
    "ffn_down": (DIM, FFN),
}
METADATA = {
    "general.architecture": "llama",
    "llama.block_count": LAYERS,
    "llama.context_length": 256,
    "llama.embedding_length": DIM,
    "llama.feed_forward_length": FFN,
    "llama.attention.head_count": HEADS,
    "llama.attention.head_count_kv": KV_HEADS,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": [f"t{i}" for i in range(VOCAB)],
}


def write_tiny(path: Path) -> Path:
    """Q8_0 matrices, F32 norms, and a head of its own."""
    draw = np.random.default_rng(0)
    q8 = formats.by_name("Q8_0")

    def matrix(rows: int, columns: int) -> TensorData:
        weights = draw.standard_normal((rows, columns)).astype(np.float32) / 8
        return TensorData(q8, (rows, columns), q8.encode(weights))

    tensors = {
        "token_embd.weight": matrix(VOCAB, DIM),
        "output.weight": matrix(VOCAB, DIM),
        "output_norm.weight": np.ones(DIM, np.float32),
    }
    for i in range(LAYERS):
        tensors |= {f"blk.{i}.{name}.weight": matrix(*shape) for name, shape in SHAPES.items()}
        for norm in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{i}.{norm}.weight"] = np.ones(DIM, np.float32)
    write_gguf(path, METADATA, tensors)
    return path
