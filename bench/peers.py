"""Satchel beside llama.cpp, in turns in one run: `python bench/peers.py --llama-bench PATH [MODEL...]`.

Each round times both engines on the same file, so that a noisy machine is equally noisy for both; medians and their ratio are
printed, a JSON line a test.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import satchel.files.store as store
from satchel.compiler.model import load_model
from satchel.files.checkpoint import open_checkpoint
from satchel.measure.bench import Bench


def llama_bench(program: Path, model: Path, test: str, n: int, threads: int, depth: int) -> float:
    """tokens/s of one repetition of pp or tg by llama.cpp."""
    sizes = ["-p", str(n), "-n", "0"] if test == "pp" else ["-p", "0", "-n", str(n)]
    command = [str(program), "-m", str(model), *sizes, "-t", str(threads), "-r", "1", "-d", str(depth), "-fa", "1", "-o", "json"]
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return float(json.loads(out)[0]["avg_ts"])


def rounds(args: argparse.Namespace, path: Path) -> Iterator[dict[str, object]]:
    with load_model(open_checkpoint(path), context=args.depth + max(args.prompt, args.generate) + 64, threads=args.threads) as model:
        ours = Bench(model)
        ours.fill(0, args.depth)
        for test, n in (("pp", args.prompt), ("tg", args.generate)):
            if not n:
                continue
            mine, theirs = [], []
            for _ in range(args.rounds):
                mine.append((ours.prompt if test == "pp" else ours.generate)(n, args.depth))
                theirs.append(llama_bench(args.llama_bench, path, test, n, args.threads, args.depth))
            a, b = statistics.median(mine), statistics.median(theirs)
            yield {"model": path.name, "test": f"{test}{n}", "depth": args.depth, "threads": args.threads, "rounds": args.rounds,
                   "satchel_tokens_per_s": round(a, 1), "llama_cpp_tokens_per_s": round(b, 1), "ratio": round(a / b, 2)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["smollm2"], help="paths or names, as for satchel run")
    parser.add_argument("--llama-bench", type=Path, required=True, help="llama.cpp's bench program")
    parser.add_argument("-p", dest="prompt", type=int, default=512)
    parser.add_argument("-n", dest="generate", type=int, default=128)
    parser.add_argument("-t", dest="threads", type=int, default=2)
    parser.add_argument("-r", dest="rounds", type=int, default=5)
    parser.add_argument("-d", dest="depth", type=int, default=0)
    args = parser.parse_args()
    if not args.llama_bench.is_file():
        sys.exit(f"peers: error: {args.llama_bench} is not a file; give the path of llama.cpp's llama-bench")
    for reference in args.models:
        for line in rounds(args, store.resolve(reference)):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
