"""What it costs to forget: quality on a long text, and the memory of a long answer.

    python bench/endless.py smollm2 gemma3-270m [-n 3072] [--budget 512] [--generate 50000]

Quality: on Python's own documentation (pydoc_data/topics.py), over the last third of the tokens,
with a cache of `--budget` tokens: the perplexity, and how far the probabilities are from
those of full attention. Layers that see a window of their own need a budget of twice that for h2o.
Memory: pages held and the process's resident bytes while that many tokens are sampled.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import satchel
from satchel.compiler.model import load_model
from satchel.engine.engine import Engine
from satchel.engine.eviction import Eviction, HeavyHitters, Sinks
from satchel.engine.pages import pages_for
from satchel.engine.request import Scoring
from satchel.files.checkpoint import open_checkpoint
from satchel.files.store import resolve
from satchel.machine.memory import resident_bytes
from satchel.measure.accuracy import sample_text
from satchel.text import load_tokenizer

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Quality:
    """Of the same tokens with less to look at."""

    perplexity: float
    mean_kl: float  # from full attention, in nats
    same_top1: float


def log_probabilities(model: str, tokens: list[int], first: int, eviction: Eviction | None) -> Rows:
    """Of all tokens behind each from `first` on, but the last: [n, vocab]."""
    n = len(tokens)
    bound = eviction.bound if eviction else n
    with load_model(
        open_checkpoint(resolve(model)),
        context=bound,
        n_pages=pages_for(bound) * (2 if eviction else 1),
        moves=eviction is not None,
        weighs=eviction is not None and eviction.weighs,
    ) as loaded:
        engine = Engine(loaded, prefix_cache=False, eviction=eviction)
        scoring = Scoring(tokens, engine.sequence(), lambda _: None, loaded.vocab_size)
        scoring.n_read = first
        engine.submit(scoring)
        while engine.has_work:
            engine.step()
        logits = scoring.logits[first : n - 1]
    for row in logits:
        row -= row.max()
        row -= np.log(np.exp(row).sum())
    return logits


def quality(found: Rows, full: Rows, tokens: list[int]) -> Quality:
    """`found` beside what full attention says, and the tokens that came."""
    chosen = found[np.arange(len(found)), tokens[-len(found) :]]
    kl = [float((np.exp(p) * (p - q)).sum()) for p, q in zip(full, found, strict=True)]
    same = (found.argmax(axis=1) == full.argmax(axis=1)).mean()
    return Quality(float(np.exp(-chosen.mean())), float(np.mean(kl)), float(same))


def say(**fields: Any) -> None:
    rounded = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in fields.items()}
    print(json.dumps(rounded), flush=True)


def measure_quality(model: str, n: int, budget: int) -> None:
    tokenizer = load_tokenizer(open_checkpoint(resolve(model)).metadata)
    tokens = tokenizer.encode(sample_text(), add_bos=tokenizer.add_bos)[:n]
    first = 2 * n // 3
    full = log_probabilities(model, tokens, first, None)
    say(model=model, kept="all", tokens=n, **vars(quality(full, full, tokens)))
    ways = {
        f"window {budget}": Sinks(0, budget),
        f"4 sinks, window {budget - 4}": Sinks(4, budget - 4),
        f"h2o:{budget}": HeavyHitters(budget),
    }
    for kept, eviction in ways.items():
        try:
            found = log_probabilities(model, tokens, first, eviction)
        except satchel.SatchelError as error:
            say(model=model, kept=kept, refused=str(error))
            continue
        say(model=model, kept=kept, tokens=n, **vars(quality(found, full, tokens)))


def measure_memory(model: str, n: int, budget: int) -> None:
    """Of a sampled answer with sinks; reports ten times on the way."""
    with (
        satchel.load(model, sinks=4, window=budget - 4, parallel=1) as llm,
        llm.chat_stream(
            "Tell me a story that never ends.", max_tokens=n, ignore_eos=True
        ) as stream,
    ):
        told, step = 0, max(1, n // 10)
        for piece in stream:
            before, told = told, told + len(piece.tokens)
            if told // step > before // step:
                pages = [group.pages_in_use for group in llm.usage().groups]
                say(model=model, generated=told, pages=pages, resident=resident_bytes())
        assert stream.stats is not None
        say(
            model=model,
            generated=stream.stats.generated_tokens,
            dropped=stream.stats.dropped_tokens,
            tokens_per_s=stream.stats.generated_tokens_per_s,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="paths or names, as for satchel run")
    parser.add_argument("-n", type=int, default=3072, help="tokens of text; 0: no quality")
    parser.add_argument("--budget", type=int, default=512, help="tokens that stay")
    parser.add_argument("--generate", type=int, default=0, help="tokens to sample")
    args = parser.parse_args()
    for model in args.models:
        if args.n:
            measure_quality(model, args.n, args.budget)
        if args.generate:
            measure_memory(model, args.generate, args.budget)


if __name__ == "__main__":
    main()
