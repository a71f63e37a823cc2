"""Gemma 3 (text): llama with more norms, and layers that see only a window.

The file's norm weights already hold the model's 1 + w.
"""

from __future__ import annotations

from dataclasses import dataclass

from satchel.archs.base import Reach, architecture
from satchel.archs.config import Config, key
from satchel.archs.llama import Llama
from satchel.archs.weights import Weights
from satchel.graph.rope import Scaling
from satchel.graph.tensor import Tensor, gelu, softcap


def _attention_scale(so_far: Config) -> float:
    # The 27B model alone (62 layers) scales by the width of a head without key_length.
    dim = so_far.dim // so_far.n_heads if so_far.n_layers == 62 else so_far.head_dim
    return dim**-0.5


@dataclass(frozen=True)
class Gemma3Config(Config):
    attention_scale: float = key("attention.scale", _attention_scale)
    theta: float = key("rope.freq_base", 1000000.0)
    local_theta: float = key("rope.freq_base_swa", 10000.0)
    pattern: int = key("attention.sliding_window_pattern", 6)
    logit_cap: float = key("final_logit_softcapping", 0.0)


@architecture("gemma3")
@dataclass(frozen=True)
class Gemma3(Llama):
    """A norm on both sides of every branch, normed q and k, one global layer in six."""

    config: Gemma3Config
    pairs = "halves"

    def embed(self, tokens: Tensor, w: Weights) -> Tensor:
        return super().embed(tokens, w) * self.config.dim**0.5

    def layer(self, x: Tensor, w: Weights, i: int) -> Tensor:
        seen = self.attend(self.norm(x, w.attn_norm), w, i)
        x = x + self.norm(seen, w.post_attention_norm)
        return x + self.norm(self.feed_forward(self.norm(x, w.ffn_norm), w), w.post_ffw_norm)

    def qkv(self, x: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().qkv(x, w)
        return self.norm(q, w.attn_q_norm), self.norm(k, w.attn_k_norm), v

    def reach(self, i: int) -> Reach:
        c = self.config
        if c.window == 0 or (i + 1) % c.pattern == 0:
            return Reach(c.theta, None, c.scaling)
        return Reach(c.local_theta, c.window, Scaling())

    def activation(self, x: Tensor) -> Tensor:
        return gelu(x)

    def logits(self, x: Tensor, w: Weights) -> Tensor:
        logits = super().logits(x, w)
        return softcap(logits, self.config.logit_cap) if self.config.logit_cap else logits
