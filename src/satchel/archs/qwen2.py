"""Qwen2 and Qwen2.5: llama with biased q, k and v."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.archs.base import architecture
from satchel.archs.llama import Llama
from satchel.archs.weights import Weights
from satchel.graph.tensor import Tensor


@architecture("qwen2")
@dataclass(frozen=True)
class Qwen2(Llama):
    """Llama, but q, k and v must have their biases."""

    pairs = "halves"

    def qkv(self, x: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        w.require("attn_q.bias", "attn_k.bias", "attn_v.bias")
        return super().qkv(x, w)
