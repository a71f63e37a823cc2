"""The numbers of a model, read from the file's metadata into a frozen dataclass.

@dataclass(frozen=True)
class MyConfig(Config):
    softcap: float = key("final_logit_softcapping", 0.0)   # reads {arch}.final_logit_softcapping
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from types import SimpleNamespace
from typing import Any, Protocol, TypeVar, get_type_hints

from satchel.base.errors import FileFormatError, UnsupportedError
from satchel.graph.rope import Scaling


class Format(Protocol):
    """What this room needs of a block format."""

    @property
    def name(self) -> str: ...


class TensorInfo(Protocol):
    """What this room needs of an entry of the tensor table; the shape is numpy's, rows first."""

    @property
    def format(self) -> Format: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


class Source(Protocol):
    """What this room needs of a checkpoint."""

    @property
    def arch(self) -> str: ...
    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def names(self) -> Collection[str]: ...
    def tensor(self, name: str, /) -> TensorInfo: ...


Default = Callable[[Any], Any] | float | str | None


def key(name: str, default: Default = None) -> Any:
    """A field read from the metadata's `{arch}.{name}`.

    default: a value, or a function of the fields before it (and of `source`, the checkpoint); None
    means that the file must have it.
    """
    return field(metadata={"key": name, "default": default})


def _embedding_rows(so_far: Any) -> int:
    source: Source = so_far.source
    if "token_embd.weight" not in source.names:
        raise FileFormatError("the file has no tensor token_embd.weight; it is damaged")
    return source.tensor("token_embd.weight").shape[0]


def _first(name: str) -> Callable[[Any], Any]:
    return lambda so_far: getattr(so_far, name)


@dataclass(frozen=True)
class Config:
    """The numbers that every decoder here has."""

    n_layers: int = key("block_count")
    context_length: int = key("context_length")
    dim: int = key("embedding_length")
    ffn_dim: int = key("feed_forward_length")
    vocab_size: int = key("vocab_size", _embedding_rows)
    n_heads: int = key("attention.head_count")
    n_kv_heads: int = key("attention.head_count_kv", _first("n_heads"))
    head_dim: int = key("attention.key_length", lambda so_far: so_far.dim // so_far.n_heads)
    value_dim: int = key("attention.value_length", _first("head_dim"))
    window: int = key("attention.sliding_window", 0)
    attention_scale: float = key("attention.scale", lambda so_far: so_far.head_dim**-0.5)
    eps: float = key("attention.layer_norm_rms_epsilon")
    theta: float = key("rope.freq_base", 10000.0)
    rope_dims: int = key("rope.dimension_count", _first("head_dim"))
    rope_scaling: str = key("rope.scaling.type", "linear")
    rope_factor: float = key("rope.scaling.factor", 1.0)
    rope_orig_context: int = key("rope.scaling.original_context_length", _first("context_length"))
    rope_attn_factor: float = key("rope.scaling.attn_factor", 1.0)
    yarn_ext_factor: float = key("rope.scaling.yarn_ext_factor", 1.0)
    yarn_attn_factor: float = key("rope.scaling.yarn_attn_factor", 1.0)
    yarn_beta_fast: float = key("rope.scaling.yarn_beta_fast", 32.0)
    yarn_beta_slow: float = key("rope.scaling.yarn_beta_slow", 1.0)

    @property
    def scaling(self) -> Scaling:
        """How rope is stretched. Raises UnsupportedError for a kind we don't have."""
        attn_factor = self.rope_attn_factor * self.yarn_attn_factor
        match self.rope_scaling:
            case "none":
                return Scaling(attn_factor=attn_factor)
            case "linear":
                return Scaling(1 / self.rope_factor, attn_factor=attn_factor)
            case "yarn" if self.theta > 1:
                return Scaling(
                    1 / self.rope_factor,
                    self.yarn_ext_factor,
                    attn_factor,
                    self.yarn_beta_fast,
                    self.yarn_beta_slow,
                    self.rope_orig_context,
                )
            case kind:
                raise UnsupportedError(
                    f"rope scaling {kind!r} (base {self.theta:g}) is not supported; none, linear "
                    "and yarn are"
                )


REFUSED = (
    "expert_count", "logit_scale", "residual_scale", "embedding_scale", "attn_logit_softcapping",
    "attention.clamp_kqv", "attention.max_alibi_bias", "attention.temperature_scale",
    "attention.temperature_length", "attention.key_length_mla", "attention.shared_kv_layers",
    "rope.dimension_sections", "rope.scaling.alpha", "rope.scaling.yarn_log_multiplier",
)  # fmt: skip
"""Keys that would change what is computed, and that no arch here honours: an error unless zero."""

C = TypeVar("C", bound=Config)


def read_config(kind: type[C], source: Source) -> C:
    """Read all fields. Raises FileFormatError for one that is missing or makes no sense, and
    UnsupportedError if the file asks for what no arch here honours."""
    for name in REFUSED:
        value = source.metadata.get(f"{source.arch}.{name}")
        if value is not None and value != 0:
            raise UnsupportedError(f"the file asks for {source.arch}.{name}, not supported yet")
    if source.metadata.get(f"{source.arch}.attention.causal") is False:
        raise UnsupportedError("the file is of an encoder (attention.causal = false): no decoder")
    so_far = SimpleNamespace(source=source)
    types = get_type_hints(kind)
    for item in fields(kind):
        name = f"{source.arch}.{item.metadata['key']}"
        default = item.metadata["default"]
        value = source.metadata.get(name)
        if value is None:
            value = default(so_far) if callable(default) else default
        if value is None:
            raise FileFormatError(f"the file's metadata has no {name}; get the model anew")
        least = 0 if default == 0 else None
        setattr(so_far, item.name, _checked(name, value, types[item.name], least))
    del so_far.source
    config = kind(**vars(so_far))
    if config.rope_dims > config.head_dim or config.rope_dims % 2:
        raise FileFormatError(f"heads of {config.head_dim} can't turn {config.rope_dims} dims")
    if config.n_heads % config.n_kv_heads:
        raise FileFormatError(f"{config.n_heads} heads can't share {config.n_kv_heads} kv heads")
    return config


def _checked(name: str, value: Any, kind: type[Any], least: int | None) -> Any:
    """`value` as `kind`: numbers are `least`, or above zero and not absurdly small or large."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or isinstance(value, bool):
        raise FileFormatError(
            f"{name} is {type(value).__name__} {value!r:.40}, not {kind.__name__}"
        )
    is_sane = isinstance(value, str) or value == least or 1e-30 < value < 1e30  # NaN is not
    if not is_sane:
        raise FileFormatError(f"{name} is {value}, which makes no sense; get the model anew")
    return value
