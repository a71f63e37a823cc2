"""Tiny models with weights drawn by name, under Hugging Face's names and under GGUF's.

A model is a dict of the arguments of its transformers config, so that the script that makes the
golden logits and the test that checks them draw the same weights, with and without torch.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel import formats
from satchel.formats import Block

Array = NDArray[np.float32]
Model = dict[str, Any]

_SIZES = {
    "vocab_size": 48, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256, "tie_word_embeddings": False,
}  # fmt: skip
_PLAIN = {"rope_type": "default", "rope_theta": 10000.0}
_LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
_YARN = {
    "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
    "original_max_position_embeddings": 64, "beta_fast": 4.0, "beta_slow": 1.0,
}  # fmt: skip
_LINEAR = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
_GEMMA = {
    "num_hidden_layers": 7, "num_key_value_heads": 1, "query_pre_attn_scalar": 8,
    "tie_word_embeddings": True, "sliding_window": 6,
}  # fmt: skip


def _gemma(full: Model) -> Model:
    return {"full_attention": full, "sliding_attention": {**_PLAIN, "rope_theta": 100.0}}


MODELS: dict[str, Model] = {
    "llama": {"rope_parameters": _PLAIN},
    "llama-biased": {
        "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True, "head_dim": 12,
        "rope_parameters": {**_PLAIN, "rope_theta": 100.0},
    },
    "llama-llama3": {"rope_parameters": _LLAMA3, "head_dim": 16},
    "llama-linear": {"rope_parameters": _LINEAR},
    "llama-yarn": {"rope_parameters": _YARN, "head_dim": 32},
    "mistral": {"sliding_window": 5, "rope_parameters": _PLAIN},
    "qwen2": {"rope_parameters": _PLAIN},
    "qwen2-yarn": {"rope_parameters": {**_YARN, "attention_factor": 1.25}, "head_dim": 16},
    "qwen3": {"rope_parameters": _PLAIN, "head_dim": 12},
    "gemma3": {**_GEMMA, "rope_parameters": _gemma({**_PLAIN, "rope_theta": 1000.0})},
    "gemma3-capped": {
        **_GEMMA, "final_logit_softcapping": 2.0, "rope_parameters": _gemma(_LINEAR),
    },
}  # fmt: skip
for _model in MODELS.values():
    _model.update({**_SIZES, **_model})

N_TOKENS = 32


def arch_of(case: str) -> str:
    """The architecture's name in GGUF files."""
    return case.split("-")[0]


def draw(case: str, name: str, shape: tuple[int, ...], scale: float) -> Array:
    """Normal numbers that only the case, the name and the shape decide, rounded to float32."""
    rng = np.random.default_rng(zlib.crc32(f"{case}/{name}".encode()))
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def tokens(case: str) -> list[int]:
    """The token ids that a case's golden logits are of."""
    rng = np.random.default_rng(zlib.crc32(case.encode()))
    return [int(token) for token in rng.integers(MODELS[case]["vocab_size"], size=N_TOKENS)]


_LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip
_GEMMA_LAYER = {
    **_LAYER, "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip


def _shapes(case: str) -> dict[str, tuple[int, ...]]:
    """The shapes of a layer's weights, by the last part of their Hugging Face names."""
    model, arch = MODELS[case], arch_of(case)
    dim, ffn, head = model["hidden_size"], model["intermediate_size"], model["head_dim"]
    q, kv = model["num_attention_heads"] * head, model["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm": (dim,), "q_proj": (q, dim), "k_proj": (kv, dim), "v_proj": (kv, dim),
        "o_proj": (dim, q), "post_attention_layernorm": (dim,), "gate_proj": (ffn, dim),
        "up_proj": (ffn, dim), "down_proj": (dim, ffn),
    }  # fmt: skip
    if arch in ("qwen3", "gemma3"):
        shapes |= {"q_norm": (head,), "k_norm": (head,)}
    if arch == "gemma3":
        shapes |= {"pre_feedforward_layernorm": (dim,), "post_feedforward_layernorm": (dim,)}
    return shapes


def _biased(case: str) -> frozenset[str]:
    model = MODELS[case]
    qkv = ("q_proj", "k_proj", "v_proj")
    names = qkv if arch_of(case) == "qwen2" else ()
    names = (*qkv, "o_proj") if model.get("attention_bias") else names
    return frozenset(
        (*names, "gate_proj", "up_proj", "down_proj") if model.get("mlp_bias") else names
    )


def weights(case: str) -> Iterator[tuple[str, str, Array]]:
    """All weights: Hugging Face's name, GGUF's name, and the array as Hugging Face has it."""
    model, gemma = MODELS[case], arch_of(case) == "gemma3"
    dim, vocab = model["hidden_size"], model["vocab_size"]
    shapes, biased = _shapes(case), _biased(case)

    def one(name: str, gguf: str, shape: tuple[int, ...]) -> tuple[str, str, Array]:
        if "norm" in name:  # Gemma's norms multiply by 1 + w
            return name, gguf, draw(case, name, shape, 0.2) + np.float32(0 if gemma else 1)
        scale = 0.2 if name.endswith("bias") or "embed" in name else 1.5 * shape[-1] ** -0.5
        return name, gguf, draw(case, name, shape, scale)

    yield one("model.embed_tokens.weight", "token_embd.weight", (vocab, dim))
    yield one("model.norm.weight", "output_norm.weight", (dim,))
    if not model["tie_word_embeddings"]:
        yield one("lm_head.weight", "output.weight", (vocab, dim))
    for i in range(model["num_hidden_layers"]):
        for part, gguf in (_GEMMA_LAYER if gemma else _LAYER).items():
            last = part.split(".")[-1]
            name = f"model.layers.{i}.{part}"
            if last in shapes:
                yield one(f"{name}.weight", f"blk.{i}.{gguf}.weight", shapes[last])
            if last in biased:
                yield one(f"{name}.bias", f"blk.{i}.{gguf}.bias", shapes[last][:1])


@dataclass(frozen=True)
class Info:
    """An entry of the tensor table."""

    shape: tuple[int, ...]
    format: type[Block] = formats.F32


@dataclass
class Fake:
    """A checkpoint in memory, and a source of its weights."""

    arch: str
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    arrays: dict[str, Array] = field(default_factory=dict[str, Array])

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.arrays)

    def tensor(self, name: str, /) -> Info:
        return Info(self.arrays[name].shape)

    def __call__(self, name: str, /) -> Array:
        return self.arrays[name]


def checkpoint(case: str) -> Fake:
    """A case as the GGUF converter would write it."""
    model, arch = MODELS[case], arch_of(case)
    fake = Fake(arch, {f"{arch}.{key}": value for key, value in _metadata(model).items()})
    for name, gguf, array in weights(case):
        if arch == "gemma3" and "norm" in name:
            array = array + np.float32(1)
        if arch in ("llama", "mistral") and ("q_proj" in name or "k_proj" in name):
            array = _interleaved(array, model["head_dim"])
        fake.arrays[gguf] = array
    rope = model["rope_parameters"]
    if rope.get("rope_type") == "llama3":
        fake.arrays["rope_freqs.weight"] = _llama3_factors(rope, model["head_dim"])
    return fake


def _interleaved(rows: Array, head_dim: int) -> Array:
    """Rows i and i + head_dim / 2 of each head side by side."""
    halves = rows.reshape(-1, 2, head_dim // 2, *rows.shape[1:])
    return halves.swapaxes(1, 2).reshape(rows.shape)


def _llama3_factors(rope: Model, dims: int) -> Array:
    """What each pair's frequency is divided by: 1 for short waves, `factor` for long ones."""
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    factors: list[float] = []
    for i in range(dims // 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (2 * i / dims)
        turns = rope["original_max_position_embeddings"] / wave
        mix = min(1.0, max(0.0, (turns - low) / (high - low)))
        factors.append(1 / ((1 - mix) / factor + mix))
    return np.array(factors, np.float32)


def _metadata(model: Model) -> dict[str, Any]:
    rope = model["rope_parameters"]
    full = rope.get("full_attention", rope)
    numbers = {
        "block_count": model["num_hidden_layers"],
        "context_length": model["max_position_embeddings"],
        "embedding_length": model["hidden_size"],
        "feed_forward_length": model["intermediate_size"],
        "attention.head_count": model["num_attention_heads"],
        "attention.head_count_kv": model["num_key_value_heads"],
        "attention.key_length": model["head_dim"],
        "attention.value_length": model["head_dim"],
        "attention.layer_norm_rms_epsilon": model["rms_norm_eps"],
        "rope.freq_base": full["rope_theta"],
    }
    if "sliding_window" in model:
        numbers["attention.sliding_window"] = model["sliding_window"]
    if "sliding_attention" in rope:
        numbers["rope.freq_base_swa"] = rope["sliding_attention"]["rope_theta"]
    if "final_logit_softcapping" in model:
        numbers["final_logit_softcapping"] = model["final_logit_softcapping"]
    if full["rope_type"] in ("linear", "yarn"):
        numbers["rope.scaling.type"] = full["rope_type"]
        numbers["rope.scaling.factor"] = full["factor"]
    if full["rope_type"] == "yarn":
        numbers["rope.scaling.original_context_length"] = full["original_max_position_embeddings"]
        numbers["rope.scaling.yarn_beta_fast"] = full["beta_fast"]
        numbers["rope.scaling.yarn_beta_slow"] = full["beta_slow"]
    if "attention_factor" in full:  # GGUF's comes on top of the usual growth, transformers' instead
        usual = 1 + 0.1 * math.log(full["factor"])
        numbers["rope.scaling.attn_factor"] = full["attention_factor"] / usual
    return numbers
