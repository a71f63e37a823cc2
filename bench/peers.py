"""Satchel beside llama.cpp, in turns in one run:

    python bench/peers.py --llama-bench PATH [MODEL...] [-d DEPTH]
    python bench/peers.py --llama-bench PATH --shape llama-3.2-1b --format q4_k_m

Each round times one engine and then the other on the same file, so that a noisy machine is equally
noisy for both, and measures the machine's limits in between. Satchel's workers sleep while
llama.cpp runs. A JSON line a test: medians, their ratio, and the fraction of the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from satchel.base.errors import SatchelError
from satchel.files.checkpoint import open_checkpoint
from satchel.files.store import resolve
from satchel.measure.bench import Case, Runner, cases_of, load_for
from satchel.measure.limits import LimitMeter
from satchel.measure.shapes import RECIPES, SHAPES, shape_file
from satchel.measure.work import work_of


@dataclass
class Samples:
    """Tokens per second of one case, round by round."""

    ours: list[float] = field(default_factory=list[float])
    theirs: list[float] = field(default_factory=list[float])


def llama_bench(program: Path, model: Path, case: Case, threads: int) -> float:
    """Tokens per second of one run of llama.cpp, flash attention on."""
    n_prompt, n_generate = (case.n, 0) if case.kind == "pp" else (0, case.n)
    sizes = ["-p", n_prompt, "-n", n_generate, "-d", case.depth, "-t", threads, "-r", 1]
    command = [program, "-m", model, *sizes, "-fa", 1, "-o", "json"]
    # its libraries may lie beside it
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(program.parent)}
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, env=libraries)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        sys.exit(f"peers: error: {program.name} failed on {model}: {last}")
    return float(json.loads(done.stdout)[0]["avg_ts"])


def compare(args: argparse.Namespace, name: str, path: Path) -> Iterator[dict[str, Any]]:
    """A line for each case."""
    cases = cases_of(args.n_prompt, args.n_gen, args.depth)
    samples = {case: Samples() for case in cases}
    read: list[float] = []
    multiply: list[float] = []
    with ExitStack() as stack:
        model = stack.enter_context(load_for(open_checkpoint(path), cases, args.threads))
        meter = stack.enter_context(LimitMeter(args.threads))
        runner = Runner(model)
        runner.fill(args.depth)
        runner.warm_up(args.depth)
        for _ in range(args.rounds):
            for case, of in samples.items():
                read.append(meter.read_bytes_per_s())
                multiply.append(meter.mads_per_s())
                of.ours.append(runner.time(case))
                of.theirs.append(llama_bench(args.llama_bench, path, case, args.threads))
        work = work_of(model.graph, model.lowered)
    limits = max(read), max(multiply)
    for case, of in samples.items():
        ours, theirs = statistics.median(of.ours), statistics.median(of.theirs)
        limit = case.limit(work, *limits)
        yield {
            "model": name,
            "test": str(case),
            "threads": args.threads,
            "rounds": args.rounds,
            "satchel_tokens_per_s": round(ours, 2),
            "llama_cpp_tokens_per_s": round(theirs, 2),
            "ratio": round(ours / theirs, 3),
            "limit_tokens_per_s": round(limit, 2),
            "fraction_of_limit": round(ours / limit, 4),
            "read_bytes_per_s": round(limits[0]),
            "mads_per_s": round(limits[1]),
            "satchel_all": [round(x, 2) for x in of.ours],
            "llama_cpp_all": [round(x, 2) for x in of.theirs],
        }


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("models", nargs="*", help="paths or names, as for satchel run (default smollm2)")
    add("--llama-bench", type=Path, required=True, help="llama.cpp's bench program")
    add("--shape", choices=SHAPES, help="a model of this shape with random weights")
    add("--format", choices=RECIPES, default="q4_0", help="the shape's format")
    add("--keep", type=Path, help="where the shape's file is kept")
    add("-p", dest="n_prompt", type=int, default=512)
    add("-n", dest="n_gen", type=int, default=128)
    add("-d", dest="depth", type=int, default=0)
    add("-t", dest="threads", type=int, default=2)
    add("-r", dest="rounds", type=int, default=5)
    args = parser.parse_args()
    if not args.llama_bench.is_file():
        parser.error(f"{args.llama_bench} is not a file; give the path of llama.cpp's llama-bench")
    if args.shape and args.models:
        parser.error("give either models or a --shape")
    args.llama_bench = args.llama_bench.resolve()
    return args


def main() -> None:
    """Prints a JSON line for each model and test."""
    args = parse()
    try:
        if args.shape:
            with shape_file(args.shape, args.format, args.keep) as path:
                report(args, f"{args.shape} {args.format}", path)
        for name in () if args.shape else args.models or ["smollm2"]:
            report(args, name, resolve(name))
    except SatchelError as error:
        sys.exit(f"peers: error: {error}")


def report(args: argparse.Namespace, name: str, path: Path) -> None:
    """Prints what `compare` finds."""
    for line in compare(args, name, path):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
