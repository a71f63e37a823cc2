"""`satchel bench`: speed, as JSON lines or a table."""

from __future__ import annotations

import argparse

from satchel.cli.output import as_json, table
from satchel.files.store import resolve


def bench(args: argparse.Namespace) -> int:
    """Prints a result for each test, one JSON object a line with --json."""
    path = resolve(args.model)
    from satchel.files.checkpoint import open_checkpoint
    from satchel.measure.bench import cases_of, load_for, measure

    cases = cases_of(args.n_prompt, args.n_gen, args.n_depth)
    with load_for(open_checkpoint(path), cases, args.threads) as model:
        results = measure(model, cases, name=str(args.model), repetitions=args.repetitions)
    if args.json:
        for result in results:
            print(as_json(result.as_dict()))
        return 0
    rows = [
        (
            r.model,
            r.test,
            r.threads,
            f"{r.tokens_per_s:.1f} ± {r.tokens_per_s_sd:.1f}",
            f"{r.limit_tokens_per_s:.1f}",
            f"{r.fraction_of_limit:.0%}",
        )
        for r in results
    ]
    print(table(("model", "test", "threads", "tokens/s", "limit", "of limit"), rows))
    return 0
