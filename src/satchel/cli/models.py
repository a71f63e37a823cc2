"""`satchel pull`, `list` and `rm`: the model store."""

from __future__ import annotations

import argparse

from satchel.base import log
from satchel.cli.output import as_json, table
from satchel.files import store


def pull(args: argparse.Namespace) -> int:
    """Fetches a model, if it is not here; prints where it lies."""
    print(store.resolve(args.model))
    return 0


def list_models(args: argparse.Namespace) -> int:
    """Prints the models of the store and of the Hugging Face cache."""
    found = store.list_models()
    if args.json:
        for model in found:
            named = {"model": model.reference, "bytes": model.bytes, "path": str(model.path)}
            print(as_json(named))
    elif found:
        rows = [(m.reference, log.size(m.bytes), m.path) for m in found]
        print(table(("model", "size", "path"), rows))
    else:
        log.note("no models are here yet; try: satchel pull smollm2")
    return 0


def remove(args: argparse.Namespace) -> int:
    """Deletes a model of the store."""
    log.note(f"{args.model} is deleted; {log.size(store.remove(args.model))} are free again")
    return 0
