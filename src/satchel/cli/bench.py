"""`satchel bench`: speed, where it goes, and whether it has changed; as JSON lines or tables."""

from __future__ import annotations

import argparse
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.base import log
from satchel.base.errors import OptionError
from satchel.cli.output import as_json, table
from satchel.cli.tune import first_use
from satchel.files.store import resolve
from satchel.kernels.cache_types import F16

if TYPE_CHECKING:
    from satchel.compiler.model import CompiledModel
    from satchel.files.checkpoint import Checkpoint
    from satchel.measure.baseline import Comparison, Setting
    from satchel.measure.bench import Result
    from satchel.measure.profile import KernelTime, Report


def bench(args: argparse.Namespace) -> int:
    """Prints a result for each test; 1 when one is slower than the baseline it is compared to."""
    from satchel.measure.baseline import baseline_path, load_baseline

    check_flags(args)
    # before anything is measured: a bad name would show too late
    before = load_baseline(args.compare) if args.compare else None
    if args.save:
        baseline_path(args.save)
    with model_file(args) as (name, path):
        from satchel.files.checkpoint import open_checkpoint

        if said := first_use(args.threads, path, name):
            log.note(f"satchel: {said}")
        checkpoint, name = open_checkpoint(path), with_types(name, cache_types(args))
        if args.profile:
            profile(args, name, checkpoint)
            return 0
        results, setting = run(args, name, checkpoint)
    return keep_and_compare(args, before, results, setting)


def check_flags(args: argparse.Namespace) -> None:
    """Raises OptionError for flags that make no sense together."""
    if (args.model is None) == (args.shape is None):
        raise OptionError("give either a MODEL or a --shape: satchel bench MODEL [flags]")
    for flag in ("format", "keep"):
        if getattr(args, flag) is not None and args.shape is None:
            raise OptionError(f"--{flag} goes with --shape")
    if args.profile and (args.save or args.compare):
        raise OptionError("--profile is not kept: leave out --save and --compare")


@contextmanager
def model_file(args: argparse.Namespace) -> Generator[tuple[str, Path]]:
    """Name and path of what is measured; a shape's file is made, and removed unless kept."""
    if args.shape is None:
        yield str(args.model), resolve(args.model)
        return
    from satchel.measure.shapes import shape_file

    recipe = args.format or "q4_0"
    keep = None if args.keep is None else Path(args.keep).expanduser()
    with shape_file(args.shape, recipe, keep) as path:
        yield f"{args.shape} {recipe.lower()}", path


def run(
    args: argparse.Namespace, name: str, checkpoint: Checkpoint
) -> tuple[list[Result], Setting]:
    """Measures, and prints unless there is a baseline to print beside."""
    from satchel.measure.baseline import this_setting
    from satchel.measure.bench import cases_of, load_for, measure

    cases = cases_of(args.n_prompt, args.n_gen, args.n_depth)
    check_memory(args, checkpoint, max(case.depth + case.n for case in cases))
    with load_for(checkpoint, cases, args.threads, cache_types(args)) as model:
        results = measure(model, cases, name=name, repetitions=args.repetitions)
        setting = this_setting(model.plan.kernels)
    forget_weights(args, model)
    if not args.compare:
        print_results(results, json=args.json)
    return results, setting


def cache_types(args: argparse.Namespace) -> tuple[str, str]:
    """Of K and V. Speed is measured whatever they lose."""
    return args.cache_type_k, args.cache_type_v


def check_memory(args: argparse.Namespace, checkpoint: Checkpoint, context: int) -> None:
    """Raises MemoryLimitError for what takes more than --memory: here nothing is made to fit."""
    if args.memory is not None:
        from satchel.engine.ledger import Ledger

        Ledger(checkpoint).forecast(context, 1, cache_types(args)).check(args.memory)


def with_types(name: str, types: tuple[str, str]) -> str:
    """A model's name, and what its KV cache is kept in where this is not f16."""
    return name if types == (F16, F16) else f"{name} kv {types[0]}/{types[1]}"


def forget_weights(args: argparse.Namespace, model: CompiledModel) -> None:
    """The weights that were packed for a file that no one will see again."""
    if args.shape is not None and args.keep is None:
        for packed in model.packed_files:
            packed.unlink(missing_ok=True)


def print_results(results: list[Result], *, json: bool) -> None:
    """A line for each."""
    if json:
        print_lines(result.as_dict() for result in results)
        return
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


def print_lines(lines: Iterable[dict[str, object]]) -> None:
    """JSON lines."""
    for line in lines:
        print(as_json(line))


# ---- baselines


def keep_and_compare(
    args: argparse.Namespace,
    baseline: tuple[list[Result], Setting] | None,
    results: list[Result],
    setting: Setting,
) -> int:
    """Does what --compare and --save ask for, in this order; 1 if anything became slower."""
    from dataclasses import asdict

    from satchel.measure.baseline import compare, save_baseline

    found: list[Comparison] = []
    if baseline is not None:
        before, then = baseline
        found = compare(before, results)
        for difference in then.differences(setting):
            log.note(f"since {args.compare}: {difference}")
        if args.json:
            print_lines(asdict(comparison) for comparison in found)
        else:
            print_comparisons(found)
    if args.save:
        log.note(f"kept as {save_baseline(args.save, results, setting)}")
    return int(any(comparison.verdict == "slower" for comparison in found))


def print_comparisons(found: list[Comparison]) -> None:
    """A row for each test."""
    rows = [
        (
            c.model,
            c.test,
            c.threads,
            f"{c.before:.1f}",
            f"{c.after:.1f}",
            f"{c.change:+.1%}",
            f"{c.noise:.1%}",
            c.verdict,
        )
        for c in found
    ]
    head = ("model", "test", "threads", "before", "after", "change", "noise", "verdict")
    print(table(head, rows))


# ---- where the time goes


def profile(args: argparse.Namespace, name: str, checkpoint: Checkpoint) -> None:
    """Prints the kernels of a prompt's step and of a token's, and Python's share."""
    from satchel.measure.bench import load_for
    from satchel.measure.profile import profile_cases, profile_model
    from satchel.text import load_tokenizer

    tokenizer = load_tokenizer(checkpoint.metadata)
    cases = profile_cases(args.n_prompt, args.n_depth)
    check_memory(args, checkpoint, max(case.depth + case.n for case in cases))
    with load_for(checkpoint, cases, args.threads, cache_types(args)) as model:
        report = profile_model(
            model, tokenizer, name=name, n_prompt=args.n_prompt, depth=args.n_depth
        )
    forget_weights(args, model)
    if args.json:
        print_lines(report.lines())
    else:
        print_report(report)


def print_report(report: Report) -> None:
    """The limits, a table for each step, a line for each way to sample."""
    roofs = report.roofs
    print(
        f"limits: {roofs.memory_bytes_per_s / 1e9:.1f} GB/s from memory, "
        f"{roofs.cache_bytes_per_s / 1e9:.1f} from the shared cache; G multiply-adds/s: "
        f"{roofs.code_mads_per_s / 1e9:.0f} of codes, {roofs.float_mads_per_s / 1e9:.0f} of floats"
    )
    for step, kernels in report.steps:
        print(
            f"\n{step.test}: {step.ms:.2f} ms = work {step.work_ms:.2f} + waiting "
            f"{step.waiting_ms:.2f} + Python {step.python_ms:.2f} ({step.python_share:.1%})"
        )
        print_kernels(kernels)
    print()
    for engine in report.engine:
        print(
            f"a token of the engine, {engine.sampler}: {engine.ms:.2f} ms, of which Python "
            f"{engine.python_ms:.2f} ({engine.python_share:.1%})"
        )


def print_kernels(kernels: list[KernelTime]) -> None:
    """A row for each, those that take longest first."""
    rows = [
        (
            k.kernel,
            k.calls,
            f"{k.ms:.3f}",
            f"{k.share:.1%}",
            f"{k.bytes / 1e6:.2f}",
            f"{k.gb_per_s:.1f}",
            f"{k.gmads_per_s:.1f}",
            k.bound,
            f"{k.fraction_of_limit:.0%}",
        )
        for k in kernels
    ]
    head = ("kernel", "calls", "ms", "share", "MB", "GB/s", "G mads/s", "bound", "of limit")
    print(table(head, rows))
