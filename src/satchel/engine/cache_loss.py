"""What it costs to keep keys and values in fewer bits, and which types are refused for it.

A loss is the mean KL divergence, in nats a token, from the same model with K and V in f16. A pair
of types that loses more than LIMIT is refused unless it is forced. The figure is the first of:
what `satchel measure kv` found for this very file; what we found for the model, known by its name
and size; the most that the types cost any model we know. Of a pair that was not measured, K's type
and V's are said to cost what both cost alone, together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from satchel.base.errors import OptionError
from satchel.base.kept import keep_json
from satchel.base.options import options
from satchel.base.version import VERSION
from satchel.files.checkpoint import Checkpoint
from satchel.kernels.cache_types import CACHE_TYPES, F16, cache_type

LIMIT = 0.05
"""Nats a token. The products alone, with activations in 8 bits, cost 0.002 (docs/facts.md)."""

Types = tuple[str, str]

KNOWN: dict[str, dict[Types, float]] = {
    "smollm2 135m": {
        ("bf16", F16): 0.002, ("int8", F16): 0.003, ("int4", F16): 0.137, ("int4-rot", F16): 0.068,
        (F16, "bf16"): 0.002, (F16, "int8"): 0.002, (F16, "int4"): 0.009, (F16, "int4-rot"): 0.007,
    },
    "gemma-3 270m": {
        ("bf16", F16): 0.002, ("int8", F16): 0.008, ("int4", F16): 0.140, ("int4-rot", F16): 0.119,
        (F16, "bf16"): 0.002, (F16, "int8"): 0.002, (F16, "int4"): 0.009, (F16, "int4-rot"): 0.007,
    },
}  # fmt: skip
"""By name and size of the file's metadata: figures of docs/facts.md."""


@dataclass(frozen=True)
class Loss:
    """The mean KL divergence of a pair of types, and what it was measured on."""

    mean_kl: float
    source: str


def read_types(k: str, v: str) -> Types:
    """Our names of the types, see kernels.cache_types. Raises OptionError."""
    found: list[str] = []
    for option, name in (("cache_type_k", k), ("cache_type_v", v)):
        try:
            found.append(cache_type(name))
        except ValueError as error:
            raise OptionError(f"{option}: {name!r} {error}") from None
    return found[0], found[1]


def check_cache_types(checkpoint: Checkpoint, types: Types, *, forced: bool) -> None:
    """Raises OptionError where the types lose too much and are not forced."""
    loss = cache_loss(checkpoint, types)
    if forced or loss.mean_kl <= LIMIT:
        return
    better = [
        name
        for name in CACHE_TYPES
        if name != F16 and cache_loss(checkpoint, (name, types[1])).mean_kl <= LIMIT
    ]
    raise OptionError(
        f"K in {types[0]} and V in {types[1]} lose too much: a mean KL divergence of "
        f"{loss.mean_kl:.2g} from f16 ({loss.source}), and {LIMIT:g} is the most; take another "
        f"type for K ({', '.join(better) or F16}), measure this model (satchel measure kv), or "
        "force it (--force-cache-type, force_cache_type=True)"
    )


def cache_loss(checkpoint: Checkpoint, types: Types) -> Loss:
    """What a pair of types costs a model; how this is known, see above."""
    name = model_name(checkpoint)
    for figures, source in (
        (read_losses(checkpoint), "measured on this file"),
        (KNOWN.get(name, {}), f"measured on {name}"),
    ):
        found = loss_of(figures, types)
        if found is not None:
            return Loss(found, source)
    known = [loss_of(figures, types) for figures in KNOWN.values()]
    return Loss(max(x for x in known if x is not None), "the most among the models we know")


def model_name(checkpoint: Checkpoint) -> str:
    """Name and size as the file's metadata have them: "smollm2 135m"."""
    words = [checkpoint.metadata.get_str(f"general.{k}", "") for k in ("basename", "size_label")]
    return " ".join(words).strip().lower()


def loss_of(figures: Mapping[Types, float], types: Types) -> float | None:
    """Of a pair as measured, or of K's type and V's alone; None where one of them is not known."""
    if types in figures:
        return figures[types]
    each = [(types[0], F16), (F16, types[1])]
    found = [0.0 if pair == (F16, F16) else figures.get(pair) for pair in each]
    return None if None in found else math.fsum(x for x in found if x is not None)


# ---- what was measured here


def losses_path(checkpoint: Checkpoint) -> Path:
    """Where what was measured on a file is kept."""
    return options().cache_dir / "losses" / f"{checkpoint.fingerprint}.json"


def keep_losses(checkpoint: Checkpoint, figures: Mapping[Types, float]) -> Path:
    """Keep mean KL divergences, beside those that are there. Raises CacheError."""
    path, every = losses_path(checkpoint), {**read_losses(checkpoint), **figures}
    losses = [[*types, x] for types, x in every.items()]
    keep_json(path, {"version": VERSION, "losses": losses})
    return path


def read_losses(checkpoint: Checkpoint) -> dict[Types, float]:
    """What was measured by this version; nothing where the file is foreign or damaged."""
    try:
        content: Any = json.loads(losses_path(checkpoint).read_text(encoding="utf-8"))
        if content["version"] != VERSION:
            return {}
        found = {(str(k), str(v)): float(x) for k, v, x in content["losses"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {pair: x for pair, x in found.items() if math.isfinite(x)}
