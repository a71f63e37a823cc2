"""Greedy text equals llama.cpp's wherever its two best candidates are further apart than the noise
between the two engines.

greedy.json comes from make_greedy.py. The noise: over 1,024 tokens of text, the gap of the two
best differed between the engines by at most 0.56 (SmolLM2) and 0.63 (Gemma), with a standard
deviation of 0.12 and 0.16.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import satchel

NOISE = 0.7
GOLDEN = json.loads((Path(__file__).parent / "greedy.json").read_text())


@pytest.mark.parametrize("name", ["smollm2", "gemma3"])
def test_greedy_text_is_llama_cpps(name: str, request: pytest.FixtureRequest) -> None:
    decided = 0
    with satchel.load(str(request.getfixturevalue(name)), context=512) as llm:
        for case in GOLDEN[name]:
            assert llm.tokenize(case["prompt"], add_bos=llm.tokenizer.add_bos) == case["ids"]
            ids, theirs, gaps = case["ids"], np.array(case["tokens"]), np.array(case["gaps"])
            ours = llm.logits([*ids, *theirs])[len(ids) - 1 : -1].argmax(axis=-1)
            clear = gaps > NOISE
            decided += int(clear.sum())
            assert np.array_equal(ours[clear], theirs[clear]), case["prompt"]
            free = llm.generate(ids, max_tokens=len(theirs), temperature=0, ignore_eos=True).tokens
            until = int(np.argmin(clear)) if not clear.all() else len(theirs)
            assert list(free[:until]) == list(theirs[:until]), case["prompt"]
    assert decided > 100
