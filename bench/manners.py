"""How much of its speed generation keeps beside a program that keeps one core busy:

    python bench/manners.py [MODEL] [--llama-bench PATH]

Each round times generation alone and beside such a program, in turns, and llama.cpp's as well where
its bench program is given. A JSON line an engine: medians, and the ratio of both. Other programs on
the same cores count as company too, so run it on a quiet machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from peers import llama_bench

from satchel.base.errors import SatchelError
from satchel.files.checkpoint import open_checkpoint
from satchel.files.store import resolve
from satchel.measure.bench import Case, Runner, load_for


@contextmanager
def busy_core() -> Generator[None]:
    """A program that does nothing, as fast as it can."""
    code = "print(flush=True)\nwhile True: pass"
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    try:
        assert child.stdout
        child.stdout.readline()  # it is under way
        yield
    finally:
        child.kill()
        child.communicate()


def measure(engines: dict[str, Callable[[], float]], rounds: int) -> dict[str, list[list[float]]]:
    """Tokens per second of each engine: alone, and in company."""
    found: dict[str, list[list[float]]] = {name: [[], []] for name in engines}
    for _ in range(rounds):
        for name, generate in engines.items():
            found[name][0].append(generate())
            with busy_core():
                found[name][1].append(generate())
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("model", nargs="?", default="smollm2", help="path or name, as for satchel run")
    add("--llama-bench", type=Path, help="llama.cpp's bench program")
    add("-n", dest="n_gen", type=int, default=64)
    add("-t", dest="threads", type=int, default=2)
    add("-r", dest="rounds", type=int, default=5)
    args = parser.parse_args()
    if args.llama_bench and not args.llama_bench.is_file():
        parser.error(f"{args.llama_bench} is not a file; give the path of llama.cpp's llama-bench")
    return args


def report(args: argparse.Namespace) -> None:
    """Prints a JSON line for each engine."""
    path = resolve(args.model)
    case = Case("tg", args.n_gen)
    with load_for(open_checkpoint(path), [case], args.threads) as model:
        runner = Runner(model)
        runner.warm_up()
        engines: dict[str, Callable[[], float]] = {"satchel": lambda: runner.time(case)}
        if args.llama_bench:
            program = args.llama_bench.resolve()
            engines["llama.cpp"] = lambda: llama_bench(program, path, case, args.threads)
        for name, (alone, beside) in measure(engines, args.rounds).items():
            medians = statistics.median(alone), statistics.median(beside)
            line = {
                "engine": name,
                "model": args.model,
                "test": str(case),
                "threads": args.threads,
                "rounds": args.rounds,
                "alone_tokens_per_s": round(medians[0], 2),
                "beside_tokens_per_s": round(medians[1], 2),
                "ratio": round(medians[1] / medians[0], 3),
                "alone_all": [round(x, 2) for x in alone],
                "beside_all": [round(x, 2) for x in beside],
            }
            print(json.dumps(line), flush=True)


def main() -> None:
    """Prints what `report` finds, or one line of what is wrong."""
    try:
        report(parse())
    except SatchelError as error:
        sys.exit(f"manners: error: {error}")


if __name__ == "__main__":
    main()
