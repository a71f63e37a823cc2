"""Token ids are llama.cpp's, on hard texts and on random ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.text.corpus import HARD, digest, random_texts
from tests.text.golden_file import unpack
from tests.text.tiny import TINY

from satchel.files.gguf import read_gguf
from satchel.text import Tokenizer, load_tokenizer

GOLDEN = Path(__file__).parent / "golden"


def golden(name: str) -> dict[str, Any]:
    return json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))


def check(tokenizer: Tokenizer, name: str) -> None:
    expected = golden(name)
    for key, parse_special in (("special", True), ("plain", False)):
        lists = unpack(expected[key])
        assert len(lists) == len(HARD)
        for text, ids in zip(HARD, lists, strict=True):
            assert tokenizer.encode(text, parse_special=parse_special) == ids, (key, text)
    (digests,) = unpack(expected["random"])
    wrong = [
        text
        for i, (text, crc) in enumerate(zip(random_texts(len(digests)), digests, strict=True))
        if digest(tokenizer.encode(text, parse_special=i % 2 == 0)) != crc
    ]
    assert not wrong, (len(wrong), wrong[:5])


@pytest.mark.parametrize("name", TINY)
def test_ids_of_small_vocabularies(name: str) -> None:
    check(load_tokenizer(TINY[name]), name)


def test_ids_of_smollm2(smollm2: Path) -> None:
    check(load_tokenizer(read_gguf(smollm2).metadata), "smollm2")


def test_ids_of_gemma3(gemma3: Path) -> None:
    check(load_tokenizer(read_gguf(gemma3).metadata), "gemma3")
