"""Makes greedy.json: what llama.cpp writes greedily, token by token, and how far its best candidate
was ahead each time.

    python tests/measure/make_greedy.py MODEL.gguf... > tests/measure/greedy.json

Needs llama-cpp-python. File names in the golden are the models' stems.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import llama_cpp
import numpy as np

PROMPTS = (
    "Once upon a time",
    "The capital of France is",
    "def fibonacci(n):\n",
    "Water boils at a temperature of",
    "1, 2, 3, 4,",
    "Dear Sir or Madam,\n\nI am writing to",
)
N_TOKENS = 48


def continuation(llm: llama_cpp.Llama, prompt: str) -> dict[str, object]:
    """The greedy continuation of one prompt; gaps are between the two best logits."""
    ids = llm.tokenize(prompt.encode(), special=True)
    llm.reset()
    llm.eval(ids)
    tokens, gaps = [], []
    for _ in range(N_TOKENS):
        logits = np.array(llm.scores[llm.n_tokens - 1])
        second, first = np.sort(logits)[-2:]
        tokens.append(int(logits.argmax()))
        gaps.append(round(float(first - second), 3))
        llm.eval([tokens[-1]])
    return {"prompt": prompt, "ids": ids, "tokens": tokens, "gaps": gaps}


def main() -> None:
    golden = {}
    for path in sys.argv[1:]:
        llm = llama_cpp.Llama(path, n_ctx=512, n_threads=2, logits_all=True, verbose=False)
        golden[Path(path).stem] = [continuation(llm, prompt) for prompt in PROMPTS]
    json.dump(golden, sys.stdout, indent=None, separators=(",", ":"))


if __name__ == "__main__":
    main()
