"""`satchel explain`: a layer at every stage on its way to machine code."""

from __future__ import annotations

import argparse

from satchel.cli.output import as_json
from satchel.files.store import resolve


def explain(args: argparse.Namespace) -> int:
    """Prints each stage under its title, as it is made."""
    from satchel.compiler.explain import explain as stages
    from satchel.files.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(resolve(args.model))
    for title, text in stages(checkpoint, args.layer, args.target):
        print(
            as_json({"stage": title, "text": text})
            if args.json
            else f"--- {title}\n{text.strip()}\n",
            flush=True,
        )
    return 0
