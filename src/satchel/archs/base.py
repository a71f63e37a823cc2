"""What architectures stand on: their registry, tracing, and the parts that all decoders share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar, get_type_hints

from satchel.archs.config import Config, Source, read_config
from satchel.archs.weights import Weight, Weights
from satchel.base.errors import FileFormatError, UnsupportedError
from satchel.graph import tensor
from satchel.graph.graph import Graph
from satchel.graph.node import input_node
from satchel.graph.rope import Scaling
from satchel.graph.tensor import Tensor


@dataclass(frozen=True)
class Reach:
    """How far a layer's attention sees (`window` tokens, None: all), and how its positions turn."""

    theta: float
    window: int | None
    scaling: Scaling


@dataclass(frozen=True)
class Decoder(ABC):
    """A model in the making: its numbers, and the symbolic inputs beside the tokens.

    `pairs` says which dims of a head turn together in the file's row order: "adjacent" or "halves".
    """

    config: Config
    positions: Tensor
    wanted: Tensor
    rope_factors: Tensor | None
    pairs: ClassVar[str]

    @abstractmethod
    def forward(self, tokens: Tensor, w: Weights) -> Tensor:
        """Logits [wanted, vocab]."""

    def norm(self, x: Tensor, w: Weight) -> Tensor:
        """RMS norm over the last axis."""
        return tensor.rms_norm(x, w.weight(x.width), self.config.eps)

    def rope(self, x: Tensor, reach: Reach) -> Tensor:
        """Turn heads by their positions."""
        return tensor.rope(
            x,
            self.positions,
            self.rope_factors,
            theta=reach.theta,
            dims=self.config.rope_dims,
            pairs=self.pairs,
            scaling=reach.scaling,
        )


def linear(x: Tensor, w: Weight, out: int) -> Tensor:
    """x times a weight of `out` rows, plus its bias if the file has one."""
    return tensor.linear(x, w.weight(out, x.width), w.bias(out))


_REGISTRY: dict[str, type[Decoder]] = {}
D = TypeVar("D", bound=Decoder)


def architecture(*names: str) -> Callable[[type[D]], type[D]]:
    """Register a decoder under the names that files give it (general.architecture)."""

    def register(decoder: type[D]) -> type[D]:
        for name in names:
            if name in _REGISTRY:
                raise ValueError(f"architecture {name} is defined twice")
            _REGISTRY[name] = decoder
        return decoder

    return register


def architectures() -> tuple[str, ...]:
    """The names of all architectures, sorted."""
    return tuple(sorted(_REGISTRY))


def _decoder(source: Source) -> type[Decoder]:
    if source.arch not in _REGISTRY:
        known = ", ".join(architectures())
        raise UnsupportedError(f"architecture {source.arch!r} is not supported; these are: {known}")
    return _REGISTRY[source.arch]


def config_of(source: Source) -> Config:
    """The numbers of a checkpoint. Raises UnsupportedError, FileFormatError."""
    config: Config = read_config(get_type_hints(_decoder(source))["config"], source)
    table = source.metadata.get("tokenizer.ggml.tokens", ())
    if len(table) > config.vocab_size:
        raise FileFormatError(
            f"the file has {len(table)} tokens, but a vocabulary of {config.vocab_size} rows"
        )
    return config


def trace(source: Source) -> Graph:
    """The graph of a checkpoint, by running its architecture's forward once on symbols.

    Raises UnsupportedError for an unknown architecture or feature, and FileFormatError that names
    the tensor if one is missing, contradicts the metadata by its shape, or is used by no one.
    """
    decoder, config, w = _decoder(source), config_of(source), Weights(source)
    tokens = Tensor(input_node("tokens", ("tokens",), "i32"))
    positions = Tensor(input_node("positions", ("tokens",), "i32"))
    wanted = Tensor(input_node("wanted", ("wanted",), "i32"))
    factors = w.rope_freqs.weight(config.rope_dims // 2) if w.rope_freqs.exists else None
    logits = decoder(config, positions, wanted, factors).forward(tokens, w)
    w.check_all_touched()
    return Graph((tokens.node, positions.node, wanted.node), (logits.node,))
