"""Qwen3: llama with normed q and k."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.archs.base import architecture
from satchel.archs.llama import Llama
from satchel.archs.weights import Weights
from satchel.graph.tensor import Tensor


@architecture("qwen3")
@dataclass(frozen=True)
class Qwen3(Llama):
    """Llama with a norm over each head of q and k."""

    pairs = "halves"

    def qkv(self, x: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(x, w)
        return self.norm(q, w.attn_q_norm), self.norm(k, w.attn_k_norm), v
