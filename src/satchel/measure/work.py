"""What a token costs by the plan: bytes to read, multiply-adds to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from satchel.compiler.lower_attention import kv_name
from satchel.compiler.lowering import Lowered
from satchel.compiler.weights import Matrix
from satchel.graph.graph import Graph, Node
from satchel.kernels.pages import PAGE, page_bytes


@dataclass(frozen=True)
class Attention:
    """A layer's: bytes of a position's keys and values; how far it looks back."""

    kv_bytes: int
    heads_dim: int  # all query heads together
    window: int | None

    def seen(self, position: int) -> int:
        """How many positions a token at this one looks at, itself among them."""
        return position + 1 if self.window is None else min(position + 1, self.window)


@dataclass(frozen=True)
class Work:
    """Of one token. `head_mads` are those of the logits, which a prompt needs only once.

    Bytes are those of the packed weights, as the kernels read them. The multiply-adds are those of
    the products: attention's are few where the context is short.
    """

    weight_bytes: int
    layer_mads: int
    head_mads: int
    attention: Mapping[str, Attention] = field(hash=False)  # by the plan's buffer of its cache

    def bytes_at(self, position: int) -> int:
        """What the token at this position reads: all weights, and the KV cache that it sees."""
        return self.weight_bytes + sum(
            a.kv_bytes * a.seen(position) for a in self.attention.values()
        )

    def generation_bytes(self, n: int, depth: int) -> float:
        """Bytes read a token, on average over n tokens generated after `depth` others."""
        return sum(map(self.bytes_at, range(depth, depth + n))) / n

    def prompt_mads(self, n: int) -> float:
        """Multiply-adds a token, on average over a prompt of n."""
        return self.layer_mads + self.head_mads / n


def work_of(graph: Graph, lowered: Lowered) -> Work:
    """The work of a model: its graph as the arch traced it, and what became of it."""
    matrices = [weight for weight in lowered.weights.values() if isinstance(weight, Matrix)]
    heads = {n.inputs[1].name for n in graph.find("linear") if n.shape[0] == "wanted"}
    mads = {m.tensors: sum(m.rows) * m.columns for m in matrices}
    head = sum(n for tensors, n in mads.items() if heads & set(tensors))
    return Work(
        weight_bytes=sum(m.bytes for m in matrices),
        layer_mads=sum(mads.values()) - head,
        head_mads=head,
        attention={
            kv_name(node): _attention(node, lowered.attention.types)
            for node in graph.find("attention")
        },
    )


def _attention(node: Node, types: tuple[str, str]) -> Attention:
    q, k = node.inputs[:2]
    window = node.attrs.get("window")
    return Attention(
        kv_bytes=page_bytes(int(k.shape[1]), int(k.shape[2]), types) // PAGE,
        heads_dim=_width(q),
        window=None if window is None else int(str(window)),
    )


def _width(heads: Node) -> int:
    return int(heads.shape[1]) * int(heads.shape[2])
