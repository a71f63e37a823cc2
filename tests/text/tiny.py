"""Small vocabularies in GGUF's form, for each pre-tokenizer and for SentencePiece.

They are learned from the hard texts, so that the merges matter there.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import pairwise
from typing import Any

from tests.text.corpus import HARD

from satchel.text.bpe import BYTE_TO_LETTER

N_MERGES = 400
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "  ", "\n\n\n"]
SPECIAL_KINDS = [3, 3, 3, 3, 4, 4]


def byte_level(pre: str, **more: Any) -> dict[str, Any]:
    """Byte-level BPE: letters, the pieces of 400 merges, some words no merge makes, specials."""
    alphabet = [chr(BYTE_TO_LETTER[byte]) for byte in range(256)]
    merges = learn(*(text.encode().decode("latin-1").translate(BYTE_TO_LETTER) for text in HARD))
    pieces = list(dict.fromkeys("".join(pair) for pair in merges))
    whole = [word for word in ("Lorem", "ĠWHERE", "tempor", "return") if word not in pieces]
    tokens = [*alphabet, *pieces, *whole, *SPECIALS]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * (len(tokens) - len(SPECIALS)) + SPECIAL_KINDS,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.bos_token_id": tokens.index("<bos>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|endoftext|>"),
        **more,
    }


def sentence_piece(**more: Any) -> dict[str, Any]:
    """SentencePiece with bytes, equal scores, and tokens made of characters that are none."""
    texts = [text.replace(" ", "▁") for text in HARD]
    pieces = list(dict.fromkeys("".join(pair) for pair in learn(*texts)))
    letters = [
        letter for letter, n in Counter("".join(texts)).items() if n > 1 and letter not in "q\0"
    ]
    words = list(dict.fromkeys([*pieces, *letters, "qu", "a▁b", "aaa", "aaaaa"]))
    head = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [word for word in words if word not in (*head, *SPECIALS)]
    tokens = [*head, *words, *SPECIALS]
    kinds = [2, 3, 3, *[6] * 256, *[1] * len(words), *SPECIAL_KINDS]
    scores = [0.0] * len(head) + [-float(i // 3) for i in range(len(words))] + [0.0] * len(SPECIALS)
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
        **more,
    }


@cache
def learn(*texts: str) -> list[tuple[str, str]]:
    """Merges by how often the pairs occur, the plain way."""
    words = [list(text) for text in texts]
    merges: list[tuple[str, str]] = []
    while len(merges) < N_MERGES:
        counts = Counter(pair for word in words for pair in pairwise(word))
        left, right = max(counts, key=lambda pair: (counts[pair], pair))
        merges.append((left, right))
        for word in words:
            i = 0
            while i < len(word) - 1:
                if word[i] == left and word[i + 1] == right:
                    word[i : i + 2] = [left + right]
                i += 1
    return merges


TINY = {
    **{pre: byte_level(pre) for pre in ("default", "gpt-2", "smollm", "llama-bpe", "qwen2")},
    "spm": sentence_piece(),
    "spm-unspaced": sentence_piece(**{"tokenizer.ggml.add_space_prefix": False}),
}
