"""What a saved conversation is worth: `python bench/durable.py smollm2 gemma3-270m --tokens 4000`.

For each model a JSON line: the time to the first token when a prompt is computed, when it is
continued by another load of the model that finds it on disk, and by one that computes it all again;
bytes on disk, and the time to write them. Pages are kept in a folder of their own, deleted
afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import satchel
import satchel.api
from satchel.files import caches

WORDS = ("river", "stone", "lantern", "winter", "music", "garden", "paper", "silver", "engine")
MORE = "And what happened then, in the end?"


def ask(args: argparse.Namespace, model: str, disk_cache: int, prompt: list[int]) -> Any:
    """A short greedy answer by a model loaded for it, and the seconds that closing it took."""
    with satchel.load(
        model, context=args.tokens + 64, threads=args.threads, parallel=1, disk_cache=disk_cache
    ) as llm:
        answer = llm.generate(prompt, max_tokens=8, temperature=0, ignore_eos=True, logprobs=0)
        begun = time.perf_counter()
    return answer, time.perf_counter() - begun


def prompts(args: argparse.Namespace, model: str) -> tuple[list[int], list[int]]:
    """A prompt of so many tokens, and what one may say next."""
    with satchel.load(model, context=64, threads=args.threads, parallel=1) as llm:
        text = " ".join(WORDS[i * i % len(WORDS)] for i in range(args.tokens))
        return llm.tokenize(text)[: args.tokens], llm.tokenize(MORE)


def measure(args: argparse.Namespace, model: str, folder: Path) -> dict[str, Any]:
    """The figures of one model."""
    satchel.api.kv_folder = lambda: folder
    prompt, more = prompts(args, model)
    first, write_s = ask(args, model, 1 << 40, prompt)
    longer = [*prompt, *first.tokens, *more]
    continued, _ = ask(args, model, 1 << 40, longer)
    anew, _ = ask(args, model, 0, longer)
    times = [answer.stats.time_to_first_token_ms for answer in (first, continued, anew)]
    return {
        "model": model,
        "tokens": len(prompt),
        "first_ms": round(times[0]),
        "continued_ms": round(times[1]),
        "anew_ms": round(times[2]),
        "ratio": round(times[1] / times[2], 4),
        "cached_tokens": continued.stats.cached_tokens,
        "disk_mib": round(caches.bytes_below(folder) / 2**20, 1),
        "write_ms": round(1000 * write_s),
        "same": (continued.tokens, continued.logprobs) == (anew.tokens, anew.logprobs),
    }


def main() -> int:
    """Prints a JSON line a model; 1 where an answer differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--tokens", type=int, default=4000)
    parser.add_argument("-t", "--threads", type=int, default=2)
    args = parser.parse_args()
    same = True
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            found = measure(args, model, Path(folder))
        print(json.dumps(found), flush=True)
        same = same and found["same"]
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
