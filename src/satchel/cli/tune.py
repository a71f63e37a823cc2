"""`satchel tune`: measure what is best on this machine, and keep it."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.base import log
from satchel.base.errors import CacheError, OptionError
from satchel.base.options import options
from satchel.cli.output import as_json, table
from satchel.files.store import resolve

if TYPE_CHECKING:
    from satchel.machine.tuned import Tuned


def tune(args: argparse.Namespace) -> int:
    """Prints the trials and the choice; or forgets what was kept."""
    from satchel.machine import this_machine
    from satchel.machine.tuned import forget_tuned, keep_tuned

    folder, machine = options().cache_dir, this_machine()
    if args.clear:
        if args.model is not None:
            raise OptionError("--clear goes without a model")
        was_there = forget_tuned(folder, machine)
        log.note("forgotten" if was_there else "nothing was kept for this machine")
        return 0
    found = measured(args.model)
    kept: Path | None = None
    if found.busy:
        log.warning("not kept, as others took much of the processors: tune when it is quiet")
    else:
        try:
            kept = keep_tuned(folder, machine, found)
        except CacheError as error:
            log.warning(f"what was measured can't be kept: {error}")
    if args.json:
        print(as_json(asdict(found) | {"kept": None if kept is None else str(kept)}))
    else:
        print(text(found))
        if kept is not None:
            log.note(f"kept as {kept}")
    return 0


def measured(model: str | None) -> Tuned:
    """The trials on a model, or on random weights that are deleted again."""
    from satchel.files.checkpoint import open_checkpoint
    from satchel.measure import tune as trials
    from satchel.measure.shapes import shape_file

    if model is not None:
        return trials.tune(open_checkpoint(resolve(model)), model)[0]
    with shape_file(trials.SHAPE, trials.FORMAT) as path:
        found, loaded = trials.tune(open_checkpoint(path), f"{trials.SHAPE} {trials.FORMAT}")
    for packed in loaded.packed_files:
        packed.unlink(missing_ok=True)
    return found


def text(found: Tuned) -> str:
    """A row for each trial; the chosen ones are marked."""
    threads = [
        (
            trial.threads,
            f"{trial.prompt_tokens_per_s:.1f}",
            f"{trial.generated_tokens_per_s:.1f}",
            "chosen" if trial.threads == found.threads else "",
        )
        for trial in found.trials
    ]
    tiles = [
        (WORDS[trial.choice], trial.value, f"{trial.speed:.2f}", "chosen" if trial.chosen else "")
        for trial in found.tile_trials
    ]
    return "\n\n".join(
        table(heads, rows)
        for heads, rows in (
            (("threads", "prompt tokens/s", "generated tokens/s", ""), threads),
            (("tiles", "", "speed of their kernels", ""), tiles),
        )
        if rows
    )


WORDS = {
    "ahead_bytes": "bytes of weights asked for ahead",
    "run_bytes": "bytes of a run of tokens",
    "longest_run": "tokens of a run",
    "tokens": "tokens of a product at once",
    "lanes": "rows of a product at once",
    "queries": "queries of attention at once",
}


def first_use(threads: int | None, path: Path, name: str) -> str | None:
    """On first use, unless the user names a number of threads: tune; a line of what was chosen."""
    from satchel.files.checkpoint import open_checkpoint
    from satchel.measure.tune import ensure_tuned

    return None if threads is not None else ensure_tuned(open_checkpoint(path), name)
