"""Llama, and its kin of the same form: Mistral, SmolLM2, TinyLlama, Yi."""

from __future__ import annotations

from dataclasses import dataclass

from satchel.archs.base import Decoder, Reach, architecture, linear
from satchel.archs.weights import Weights
from satchel.graph.tensor import Tensor, attention, embed, in_layer, pick, silu


@architecture("llama", "mistral")
@dataclass(frozen=True)
class Llama(Decoder):
    """Norm, attention, add; norm, gated feed-forward, add."""

    pairs = "adjacent"  # GGUF's row order for llama: the converter interleaves the halves

    def forward(self, tokens: Tensor, w: Weights) -> Tensor:
        x = self.embed(tokens, w)
        for i in range(self.config.n_layers):
            with in_layer(i):
                x = self.layer(x, w.layer(i), i)
        return self.logits(x, w)

    def embed(self, tokens: Tensor, w: Weights) -> Tensor:
        return embed(w.token_embd.weight(self.config.vocab_size, self.config.dim), tokens)

    def layer(self, x: Tensor, w: Weights, i: int) -> Tensor:
        x = x + self.attend(self.norm(x, w.attn_norm), w, i)
        return x + self.feed_forward(self.norm(x, w.ffn_norm), w)

    def attend(self, x: Tensor, w: Weights, i: int) -> Tensor:
        q, k, v = self.qkv(x, w)
        reach, scale = self.reach(i), self.config.attention_scale
        q, k = self.rope(q, reach), self.rope(k, reach)
        seen = attention(q, k, v, self.positions, cache=i, window=reach.window, scale=scale)
        return linear(seen.join_heads(), w.attn_output, self.config.dim)

    def qkv(self, x: Tensor, w: Weights) -> tuple[Tensor, Tensor, Tensor]:
        c = self.config
        q = linear(x, w.attn_q, c.n_heads * c.head_dim).split_heads(c.n_heads)
        k = linear(x, w.attn_k, c.n_kv_heads * c.head_dim).split_heads(c.n_kv_heads)
        v = linear(x, w.attn_v, c.n_kv_heads * c.value_dim).split_heads(c.n_kv_heads)
        return q, k, v

    def reach(self, i: int) -> Reach:  # noqa: ARG002 (kin differ by layer)
        return Reach(self.config.theta, self.config.window or None, self.config.scaling)

    def feed_forward(self, x: Tensor, w: Weights) -> Tensor:
        n = self.config.ffn_dim
        gate = self.activation(linear(x, w.ffn_gate, n))
        return linear(gate * linear(x, w.ffn_up, n), w.ffn_down, self.config.dim)

    def activation(self, x: Tensor) -> Tensor:
        return silu(x)

    def logits(self, x: Tensor, w: Weights) -> Tensor:
        x = self.norm(pick(x, self.wanted), w.output_norm)
        return linear(x, w.output if w.output.exists else w.token_embd, self.config.vocab_size)
