"""Write the ids that llama.cpp gives the corpus: the golden files of test_golden.py.

    python -m tests.text.make_golden MODEL.gguf... [--out tests/text/golden]

It needs llama-cpp-python. Each model's file name without its ending names its golden file; the tiny
vocabularies are always written too.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from tests.text.corpus import HARD, digest, random_texts
from tests.text.golden_file import pack
from tests.text.tiny import TINY

from satchel.files.gguf import write_gguf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--out", type=Path, default=Path("tests/text/golden"))
    options = parser.parse_args()
    for model in options.models:
        write(options.out / f"{model.stem}.json", ids_of(model, 10_000))
    with tempfile.TemporaryDirectory() as folder:
        for name, metadata in TINY.items():
            path = Path(folder) / f"{name}.gguf"
            write_gguf(path, {**architecture(), **typed(metadata)}, {})
            write(options.out / f"{name}.json", ids_of(path, 2_500))


def architecture() -> dict[str, Any]:
    """What llama.cpp wants to know before it reads a vocabulary."""
    return {
        "general.architecture": "llama",
        "llama.context_length": np.uint32(512),
        "llama.embedding_length": np.uint32(64),
        "llama.block_count": np.uint32(1),
        "llama.feed_forward_length": np.uint32(64),
        "llama.attention.head_count": np.uint32(1),
        "llama.attention.layer_norm_rms_epsilon": np.float32(1e-5),
    }


def typed(metadata: dict[str, Any]) -> dict[str, Any]:
    """The numbers in the types that llama.cpp insists on."""
    types = {"token_type": np.int32, "scores": np.float32}
    return {
        key: np.array(value, types[name])
        if (name := key.rpartition(".")[2]) in types
        else np.uint32(value)
        if name.endswith("_id")
        else value
        for key, value in metadata.items()
    }


def ids_of(path: Path, n_random: int) -> dict[str, Any]:
    model = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)

    def ids(text: str, special: bool) -> list[int]:
        if not text:
            return []  # the binding adds a space to an empty text
        return model.tokenize(text.encode(), add_bos=False, special=special)

    texts = list(random_texts(n_random))
    return {
        "special": pack([ids(text, True) for text in HARD]),
        "plain": pack([ids(text, False) for text in HARD]),
        "random": pack([[digest(ids(text, i % 2 == 0)) for i, text in enumerate(texts)]]),
    }


def write(path: Path, golden: dict[str, Any]) -> None:
    path.write_text(json.dumps(golden, indent=1) + "\n", encoding="utf-8")
    print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
