"""How far our logits are from a float64 reading of the graph, and llama.cpp's beside them.

    python bench/accuracy.py smollm2 gemma3-270m [--llama-cpp] [-n 1024]

The text is Python's own documentation (pydoc_data/topics.py). With --llama-cpp the same tokens go
through llama.cpp too (package llama-cpp-python). The reference decodes all weights and quantizes no
activation; it takes 10 s (SmolLM2) to 30 s (Gemma) for 1,024 tokens.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import satchel
from satchel.files.checkpoint import open_checkpoint
from satchel.files.store import resolve
from satchel.measure.accuracy import Agreement, agreement, reference_logits, sample_text


def llama_cpp_logits(path: Path, tokens: Sequence[int]) -> NDArray[np.float32]:
    """What llama.cpp says, in one context."""
    import llama_cpp  # an oracle, not a dependency

    n = len(tokens)
    llm = llama_cpp.Llama(str(path), n_ctx=n, n_batch=512, logits_all=True, verbose=False)
    llm.eval(list(tokens))
    return np.array(llm.scores[:n], np.float32)


def line(model: str, engine: str, found: Agreement) -> str:
    fields = {
        "model": model,
        "engine": engine,
        "tokens": found.n,
        "mean_kl": float(f"{found.mean_kl:.4g}"),
        "kl_error": float(f"{found.kl_error:.2g}"),
        "same_top1": round(found.top1, 4),
    }
    return json.dumps(fields)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="+", help="paths or names, as for satchel run")
    parser.add_argument("-n", type=int, default=1024, help="tokens of text")
    parser.add_argument("--llama-cpp", action="store_true", help="measure llama.cpp too")
    args = parser.parse_args()
    text = sample_text()
    for model in args.models:
        path = resolve(model)
        with satchel.load(str(path), context=args.n) as llm:
            tokens = llm.tokenize(text, add_bos=llm.tokenizer.add_bos)[: args.n]
            ours = llm.logits(tokens)
        reference = reference_logits(open_checkpoint(path), tokens)
        print(line(model, "satchel", agreement(reference, ours)), flush=True)
        if args.llama_cpp:
            theirs = llama_cpp_logits(path, tokens)
            print(line(model, "llama.cpp", agreement(reference, theirs)), flush=True)


if __name__ == "__main__":
    main()
