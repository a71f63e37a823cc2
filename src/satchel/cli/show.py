"""`satchel show`: what a model file is, and the memory it will need."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from satchel.base import log
from satchel.cli.output import as_json, table
from satchel.files.store import resolve

if TYPE_CHECKING:
    from satchel.engine.ledger import Forecast
    from satchel.files.checkpoint import Checkpoint


def show(args: argparse.Namespace) -> int:
    """Prints the model's numbers, tensors by format, tokenizer, template and memory."""
    path = resolve(args.model)
    from satchel.api import forecast
    from satchel.files.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    memory = forecast(
        path,
        context=args.ctx_size,
        parallel=args.parallel,
        cache_type_k=args.cache_type_k,
        cache_type_v=args.cache_type_v,
        memory=args.memory,
    )
    print(as_json(facts(checkpoint, memory)) if args.json else text(checkpoint, memory))
    return 0


def facts(checkpoint: Checkpoint, memory: Forecast) -> dict[str, Any]:
    """All that is shown, for JSON. Of a long array only its length is given."""
    return {
        "path": str(checkpoint.path),
        "arch": checkpoint.arch,
        "weights": checkpoint.n_weights,
        "bytes": checkpoint.n_bytes,
        "numbers": numbers(checkpoint),
        "formats": [
            {"format": name, "tensors": n, "weights": weights, "bytes": n_bytes}
            for name, n, weights, n_bytes in by_format(checkpoint)
        ],
        "tokenizer": tokenizer(checkpoint),
        "chat_template": checkpoint.metadata.get_str("tokenizer.chat_template", "") or None,
        "memory": {
            "context": memory.context,
            "parallel": memory.parallel,
            "cache_types": list(memory.cache_types),
            "weights_bytes": memory.weights,
            "kv_bytes": memory.kv,
            "kv_groups": [{"window": window, "bytes": n} for window, n in memory.kv_groups],
            "activations_bytes": memory.activations,
            "process_bytes": memory.process,
            "total_bytes": memory.total,
            "packing_bytes": memory.packing,
        },
    }


def numbers(checkpoint: Checkpoint) -> dict[str, Any]:
    """The metadata under the architecture's own name."""
    prefix = checkpoint.arch + "."
    return {
        key.removeprefix(prefix): value if isinstance(value, int | float | str) else repr(value)
        for key, value in checkpoint.metadata.items()
        if key.startswith(prefix)
    }


def by_format(checkpoint: Checkpoint) -> list[tuple[str, int, int, int]]:
    """(format, tensors, weights, bytes), the most bytes first."""
    totals: dict[str, tuple[int, int, int]] = {}
    for tensor in checkpoint.tensors():
        n, weights, n_bytes = totals.get(tensor.format.name, (0, 0, 0))
        totals[tensor.format.name] = (n + 1, weights + tensor.n_elements, n_bytes + tensor.n_bytes)
    return sorted(((name, *total) for name, total in totals.items()), key=lambda row: -row[3])


def tokenizer(checkpoint: Checkpoint) -> dict[str, Any]:
    """What kind of tokenizer it is, how many tokens it has, and the ids of the special ones."""
    prefix = "tokenizer.ggml."
    said = {
        key.removeprefix(prefix): value
        for key, value in checkpoint.metadata.items()
        if key.startswith(prefix) and isinstance(value, int | str)
    }
    return {"tokens": len(checkpoint.metadata.get_array("tokenizer.ggml.tokens")), **said}


def text(checkpoint: Checkpoint, memory: Forecast) -> str:
    """All that is shown, for people."""
    found = facts(checkpoint, memory)
    template = found["chat_template"]
    n_chars = f"{len(template)} characters" if template else "none"
    pairs = {
        "file": found["path"],
        "arch": found["arch"],
        "weights": f"{found['weights']:,} in {log.size(found['bytes'])}",
        **found["numbers"],
        "tokenizer": ", ".join(f"{k} {v}" for k, v in found["tokenizer"].items()),
        "chat template": n_chars,
    }
    width = max(map(len, pairs))
    lines = [f"{key.ljust(width)}  {value}" for key, value in pairs.items()]
    rows = [(n, c, f"{w:,}", log.size(b)) for n, c, w, b in by_format(checkpoint)]
    lines += ["", table(("format", "tensors", "weights", "size"), rows)]
    times = f"{memory.parallel} times " if memory.parallel > 1 else ""
    lines += ["", f"memory at {times}a context of {memory.context} tokens:"]
    parts = [
        ("weights", memory.weights),
        ("KV cache", memory.kv),
        ("activations", memory.activations),
        ("Python", memory.process),
        ("together", memory.total),
        ("when packing", memory.packing),
    ]
    lines += [f"  {name:12} {log.size(n):>8}" for name, n in parts]
    if len(memory.kv_groups) > 1:
        seen = [
            f"{log.size(n)} of layers that see {window or 'all'}" for window, n in memory.kv_groups
        ]
        lines.append(f"  The KV cache is {' and '.join(seen)}.")
    return "\n".join(lines)
