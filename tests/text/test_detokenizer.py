"""Streams of tokens: whole characters only, and in the end the same text as decoded at once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.corpus import HARD
from tests.text.tiny import TINY

from satchel.base.errors import TextError
from satchel.text import Detokenizer, load_tokenizer

TOKENIZERS = {name: load_tokenizer(TINY[name]) for name in ("gpt-2", "spm", "spm-unspaced")}
NAMES = st.sampled_from(list(TOKENIZERS))
IDS = st.lists(st.integers(0, min(t.vocab_size for t in TOKENIZERS.values()) - 1))


@given(name=NAMES, ids=IDS, skip_special=st.booleans())
def test_a_stream_is_the_bytes_decoded(name: str, ids: list[int], skip_special: bool) -> None:
    tokenizer = TOKENIZERS[name]
    stream = Detokenizer(tokenizer, skip_special)
    text = "".join(map(stream.push, ids)) + stream.flush()
    assert text == tokenizer.decode_bytes(ids, skip_special).decode(errors="replace")


@given(name=NAMES, ids=IDS, skip_special=st.booleans())
def test_a_stream_from_the_start_is_what_decode_says(
    name: str, ids: list[int], skip_special: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    stream = Detokenizer(tokenizer, skip_special, at_start=True)
    text = "".join(map(stream.push, ids)) + stream.flush()
    assert text == tokenizer.decode(ids, skip_special)


def test_a_special_token_may_begin_what_is_shown() -> None:
    for tokenizer in TOKENIZERS.values():
        stream = Detokenizer(tokenizer, skip_special=False, at_start=True)
        special = next(i for i in range(tokenizer.vocab_size) if tokenizer.is_special(i))
        assert stream.push(special) + stream.flush() == tokenizer.text_of(special) != ""


@given(name=NAMES, text=st.sampled_from(HARD) | st.text(st.characters(exclude_categories=["Cs"])))
def test_no_half_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, parse_special=False)
    stream = Detokenizer(tokenizer, at_start=True)
    shown = ""
    expected = tokenizer.decode(ids)
    for token in ids:
        shown += stream.push(token)
        assert expected.startswith(shown)
    assert stream.flush() == ""
    assert shown == expected


def test_a_character_that_never_ends() -> None:
    stream = Detokenizer(TOKENIZERS["gpt-2"])
    smile = TOKENIZERS["gpt-2"].encode("𒀀")
    assert len(smile) > 1
    assert [stream.push(token) for token in smile[:-1]] == [""] * (len(smile) - 1)
    assert stream.flush() == "�"
    assert stream.push(TOKENIZERS["gpt-2"].encode("a")[0]) == "a"


def test_an_unknown_token() -> None:
    with pytest.raises(TextError, match="no token"):
        Detokenizer(TOKENIZERS["spm"]).push(10**6)
