"""The walk over strings by guesses finds what a walk one by one finds, in any bytes."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import FileFormatError
from satchel.files import strings
from satchel.files.strings import string_starts

pieces = st.one_of(
    st.binary(max_size=20),
    st.sampled_from(
        [b"", b"\0", bytes(7), bytes(8), bytes(30), b"a" * 255, b"b" * 256, b"c" * 70000]
    ),
    st.integers(0, 255).map(lambda n: struct.pack("<Q", n)),  # a text that looks like a length
)


def stored(texts: list[bytes]) -> bytes:
    return b"".join(struct.pack("<Q", len(text)) + text for text in texts)


def walked(texts: list[bytes], start: int) -> list[int]:
    return list(accumulate((8 + len(text) for text in texts), initial=start))


@given(
    texts=st.lists(pieces, max_size=30),
    repeats=st.integers(1, 40),
    before=st.binary(max_size=9),
    after=st.binary(max_size=40),
)
def test_any_strings_are_found(
    texts: list[bytes], repeats: int, before: bytes, after: bytes
) -> None:
    texts = texts * repeats
    data = np.frombuffer(before + stored(texts) + after, np.uint8)
    assert string_starts(data, len(before), len(texts)).tolist() == walked(texts, len(before))


def test_many_strings_over_several_stretches() -> None:
    random = np.random.default_rng(1)
    texts = [random.bytes(int(n)) for n in random.integers(0, 40, 50_000)]
    texts[20_000] = b"x" * 300_000
    data = np.frombuffer(stored(texts), np.uint8)
    assert string_starts(data, 0, len(texts)).tolist() == walked(texts, 0)


def test_ordinary_strings_are_not_walked_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why a large vocabulary opens fast: one hop per array, and a leap per stretch."""
    calls = {"_hop": 0, "_leap": 0}

    def counted(name: str) -> Callable[..., object]:
        walk = getattr(strings, name)

        def count(*arguments: object) -> object:
            calls[name] += 1
            return walk(*arguments)

        return count

    for name in calls:
        monkeypatch.setattr(strings, name, counted(name))
    texts = [f"token {i}".encode() for i in range(100_000)]
    data = np.frombuffer(stored(texts), np.uint8)
    assert len(string_starts(data, 0, len(texts))) == 100_001
    assert calls["_hop"] == 1
    assert calls["_leap"] <= len(data) // strings.STRETCH + 2


@given(texts=st.lists(pieces, min_size=1, max_size=200), cut=st.integers(1, 2**20))
def test_strings_that_are_cut_short_are_refused(texts: list[bytes], cut: int) -> None:
    content = stored(texts)
    data = np.frombuffer(content[: len(content) - 1 - cut % len(content)], np.uint8)
    with pytest.raises(FileFormatError, match="strings goes on at byte"):
        string_starts(data, 0, len(texts))
