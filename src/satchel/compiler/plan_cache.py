"""What a model needs to run, kept between processes: a warm start neither traces, nor fuses, nor
lowers, nor imports what does.

An entry is a text: the plan's own, and a line of JSON with the rest. It lies among the objects,
which are kept whole or not at all, and its key names all that it was made from, our source too.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from satchel.compiler.limits import Caches, Limits
from satchel.compiler.sources import plan_digest
from satchel.compiler.weights import FileRows, Matrix, Turns, Vector, Weight
from satchel.files.checkpoint import Checkpoint
from satchel.graph.rope import Scaling
from satchel.lang.target import Target
from satchel.machine.tiles import DEFAULT, Tiles
from satchel.runtime.objects import ObjectCache, object_key
from satchel.runtime.plan import Plan, parse_plan

_KINDS: dict[str, type[Weight]] = {
    kind.__name__: kind for kind in (Matrix, Vector, FileRows, Turns)
}


@dataclass(frozen=True)
class Ready:
    """A plan with the keys of its kernels' objects, the recipes of its weights, and what the model
    must know to fill in a batch.
    """

    plan: Plan
    weights: dict[str, Weight]
    caches: tuple[Caches, ...]
    n_kv: int
    group_tokens: int
    vocab_size: int
    state_dim: int

    def __str__(self) -> str:
        rest = {
            "weights": {name: [type(w).__name__, asdict(w)] for name, w in self.weights.items()},
            "caches": [asdict(caches) for caches in self.caches],
            "n_kv": self.n_kv,
            "group_tokens": self.group_tokens,
            "vocab_size": self.vocab_size,
            "state_dim": self.state_dim,
        }
        return f"{json.dumps(rest)}\n{self.plan}"


def parse_ready(text: str) -> Ready:
    """The entry whose text this is."""
    first, _, plan = text.partition("\n")
    rest: dict[str, Any] = json.loads(first, object_hook=_with_tuples)
    weights = {name: _weight(*entry) for name, entry in rest["weights"].items()}
    numbers = (rest[name] for name in ("n_kv", "group_tokens", "vocab_size", "state_dim"))
    caches = tuple(Caches(**fields) for fields in rest["caches"])
    return Ready(parse_plan(plan), weights, caches, *numbers)


def _with_tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}  # pyright: ignore


def _weight(kind: str, fields: dict[str, Any]) -> Weight:
    if "scaling" in fields:
        fields = fields | {"scaling": Scaling(**fields["scaling"])}
    return _KINDS[kind](**fields)


def ready_key(
    checkpoint: Checkpoint, target: Target, limits: Limits, tiles: Tiles = DEFAULT
) -> str:
    """The key of a model's entry."""
    features = " ".join(sorted(target.features))
    made_for = (target.name, features, repr(limits), repr(tiles))
    return object_key("plan", plan_digest(), checkpoint.fingerprint, *made_for)


def find_ready(key: str, objects: ObjectCache) -> tuple[Ready, dict[str, bytes]] | None:
    """An entry and the objects of its kernels; None where any of them is missing."""
    text = objects.load(key)
    if text is None:
        return None
    ready = parse_ready(text.decode())
    code: dict[str, bytes] = {}
    for kernel in ready.plan.kernels.values():
        if kernel not in code:
            found = objects.load(kernel)
            if found is None:
                return None
            code[kernel] = found
    return ready, code
