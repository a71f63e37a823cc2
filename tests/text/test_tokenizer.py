"""Tokenizers: special tokens, BOS, round trips, and what is wrong with a file or a text."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.text.corpus import HARD
from tests.text.tiny import SPECIALS, TINY, byte_level, sentence_piece

from satchel.base.errors import FileFormatError, SatchelError, TextError, UnsupportedError
from satchel.text import Tokenizer, load_tokenizer
from satchel.text.merge import merge
from satchel.text.pre_tokenizers import PRE_TOKENIZERS

TOKENIZERS = {name: load_tokenizer(metadata) for name, metadata in TINY.items()}
BPE = TOKENIZERS["smollm"]
SPM = TOKENIZERS["spm"]
BOTH = pytest.mark.parametrize("tokenizer", [BPE, SPM], ids=["bpe", "spm"])
SPACED = [*SPECIALS, "<unk>", "<s>", "</s>"]  # "spm" puts a space after each
TEXTS = st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from(HARD)


def id_of(tokenizer: Tokenizer, text: str) -> int:
    """The last token with this text: special tokens come last."""
    return max(i for i in range(tokenizer.vocab_size) if tokenizer.piece(i) == text.encode())


@given(text=TEXTS, name=st.sampled_from(list(TOKENIZERS)), parse_special=st.booleans())
def test_decoding_is_the_inverse_of_encoding(text: str, name: str, parse_special: bool) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, parse_special=parse_special)
    if name == "spm" and any(special in text for special in SPACED):
        return
    expected = text.replace("▁", " ") if name.startswith("spm") else text
    assert tokenizer.decode(ids, skip_special=False) == expected


@given(text=TEXTS, name=st.sampled_from(list(TOKENIZERS)))
def test_bos_comes_once(text: str, name: str) -> None:
    tokenizer = TOKENIZERS[name]
    assert tokenizer.bos is not None
    bos = tokenizer.text_of(tokenizer.bos)
    plain = tokenizer.encode(text)
    once = plain if plain[:1] == [tokenizer.bos] else [tokenizer.bos, *plain]
    assert tokenizer.encode(text, add_bos=True) == once
    assert tokenizer.encode(bos + text, add_bos=True)[0] == tokenizer.bos
    assert tokenizer.encode(bos + text, add_bos=True) == tokenizer.encode(bos + text)


@BOTH
def test_special_tokens(tokenizer: Tokenizer) -> None:
    start, end = id_of(tokenizer, "<|im_start|>"), id_of(tokenizer, "<|im_end|>")
    ids = tokenizer.encode("<|im_start|>Lorem<|im_end|>")
    assert (ids[0], ids[-1]) == (start, end)
    assert tokenizer.decode(ids).strip() == "Lorem"
    assert tokenizer.decode(ids, skip_special=False).startswith("<|im_start|>")
    plain = tokenizer.encode("<|im_start|>Lorem<|im_end|>", parse_special=False)
    assert start not in plain
    assert tokenizer.decode(plain, skip_special=False) == "<|im_start|>Lorem<|im_end|>"
    # User-defined tokens are text: found whatever the caller says, and shown.
    newlines = id_of(tokenizer, "\n\n\n")
    assert newlines in tokenizer.encode("a\n\n\nb", parse_special=False)
    assert not tokenizer.is_special(newlines)
    assert tokenizer.eot == end
    assert {tokenizer.eos, end} <= tokenizer.stop_ids


def test_what_the_file_says_of_bos_and_eos() -> None:
    assert (BPE.add_bos, SPM.add_bos, TOKENIZERS["llama-bpe"].add_bos) == (False, True, True)
    flags = {"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}
    told = load_tokenizer(byte_level("gpt-2", **flags))
    assert (told.add_bos, told.add_eos, BPE.add_eos) == (True, True, False)
    bos, eos = told.bos, told.eos
    assert told.encode_whole("Lorem") == [bos, *told.encode("Lorem"), eos]
    assert told.encode_whole(f"Lorem{told.text_of(eos)}") == told.encode_whole("Lorem")  # once
    assert told.encode_whole("") == [bos, eos]
    assert BPE.encode_whole("Lorem") == BPE.encode("Lorem")
    assert load_tokenizer({k: v for k, v in TINY["gpt-2"].items() if "bos" not in k}).bos is None


def added(kind: int, *names: str, **more: Any) -> Tokenizer:
    """A tokenizer with more special tokens."""
    metadata = byte_level("gpt-2", **more)
    metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *names]
    kinds = [*metadata["tokenizer.ggml.token_type"], *[kind] * len(names)]
    return load_tokenizer({**metadata, "tokenizer.ggml.token_type": kinds})


def test_tokens_that_end_a_generation() -> None:
    def ends(kind: int, *names: str) -> set[str]:
        tokenizer = added(kind, *names)
        return {tokenizer.text_of(token) for token in tokenizer.stop_ids}

    usual = {"<|endoftext|>", "<|im_end|>"}
    assert ends(3, "<|eot_id|>", "<|eom_id|>", "<tool>") == {*usual, "<|eot_id|>", "<|eom_id|>"}
    assert ends(1, "<|eot_id|>") == {*usual, "<|eot_id|>"}  # marked wrongly
    assert ends(3, "</s>") == {*usual, "</s>"}
    assert ends(4, "</s>") == usual  # HTML
    assert ends(3, "<|end|>", "<|call|>", "<|return|>") == {*usual, "<|call|>", "<|return|>"}
    assert added(3, "<|channel|>").decode([id_of(added(3, "<|channel|>"), "<|channel|>")])


def test_a_special_token_that_takes_the_spaces_after_it() -> None:
    phi = added(3, "<|user|>", **{"general.name": "Phi-3 mini"})
    other = added(3, "<|user|>")
    assert phi.encode("<|user|> \n a") == phi.encode("<|user|>a")
    assert other.encode("<|user|> \n a") != other.encode("<|user|>a")


def test_every_name_of_the_table_compiles() -> None:
    text = "I'd say: 123 words,\n  don't you?"
    for name in PRE_TOKENIZERS:
        tokenizer = load_tokenizer({**TINY["gpt-2"], "tokenizer.ggml.pre": name})
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_merging_takes_the_best_pair_and_of_equals_the_leftmost() -> None:
    ranks = {"ab": 2, "bc": 1, "aa": 0, "aab": 0}

    def rank(left: str, right: str) -> float | None:
        return ranks.get(left + right)

    assert merge("abc", rank) == ["a", "bc"]
    assert merge("aaaab", rank) == ["aa", "aab"]
    assert merge("aaa", rank) == ["aa", "a"]
    assert merge("", rank) == []
    assert merge("x", rank) == ["x"]


def test_a_merge_that_makes_no_token_is_written_in_its_bytes() -> None:
    metadata = {**TINY["gpt-2"], "tokenizer.ggml.merges": ["q z"]}
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("qz") == [*tokenizer.encode("q"), *tokenizer.encode("z")]


@BOTH
@pytest.mark.parametrize("text", ["\ud83d", "a\udc00b", "\udfff\ud800"])
def test_half_a_surrogate_pair_is_no_text(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(TextError, match="half a surrogate pair"):
        tokenizer.encode(text)


@BOTH
@pytest.mark.parametrize("token", [-1, 10**9])
def test_ids_that_do_not_exist(tokenizer: Tokenizer, token: int) -> None:
    for use in (tokenizer.piece, tokenizer.is_special, lambda i: tokenizer.decode([i])):
        with pytest.raises(TextError, match="no token"):
            use(token)


def test_a_byte_without_a_token() -> None:
    metadata = sentence_piece()
    metadata["tokenizer.ggml.tokens"] = [
        text if not text.startswith("<0x") else f"byte{text}"
        for text in metadata["tokenizer.ggml.tokens"]
    ]
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.encode("\u1234")[-3:] == [0, 0, 0]
    del metadata["tokenizer.ggml.unknown_token_id"]
    with pytest.raises(TextError, match="no token for the byte 0xE1"):
        load_tokenizer(metadata).encode("\u1234")


G = "tokenizer.ggml."


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({G + "model": "bert"}, UnsupportedError, "'bert' is unknown"),
        ({G + "model": None}, UnsupportedError, "no tokenizer"),
        ({G + "pre": "nonesuch"}, UnsupportedError, "pre-tokenizer 'nonesuch'"),
        ({G + "pre": 5}, UnsupportedError, "pre-tokenizer 5"),
        ({G + "tokens": []}, FileFormatError, "tokens is empty"),
        ({G + "tokens": "abc"}, FileFormatError, "tokens is not a list"),
        ({G + "tokens": ["a", 1]}, FileFormatError, "more than str"),
        ({G + "tokens": ["a", "b", "a"]}, FileFormatError, "1 tokens twice"),
        ({G + "token_type": [1, 1]}, FileFormatError, "2 types"),
        ({G + "token_type": 7}, FileFormatError, "token_type is not a list"),
        ({G + "merges": [1]}, FileFormatError, "merges holds more than str"),
        ({G + "bos_token_id": 10**6}, FileFormatError, "bos_token_id is 1000000"),
        ({G + "eos_token_id": "x"}, FileFormatError, "eos_token_id is 'x'"),
        ({G + "add_bos_token": "yes"}, FileFormatError, "add_bos_token is 'yes'"),
    ],
)
def test_damaged_descriptions(change: dict[str, Any], error: type[SatchelError], says: str) -> None:
    with pytest.raises(error, match=says):
        load_tokenizer({**TINY["gpt-2"], **change})


@pytest.mark.parametrize("name", ["smollm", "spm"])
def test_it_goes_with_its_last_user(name: str) -> None:
    """Without a collection of cycles: the memory of a large vocabulary is wanted back at once."""
    gc.disable()
    try:
        tokenizer = load_tokenizer(TINY[name])
        tokenizer.encode("words that are remembered")
        coder = weakref.ref(tokenizer._coder)  # pyright: ignore[reportPrivateUsage]
        del tokenizer
        assert coder() is None
    finally:
        gc.enable()


def test_what_is_missing() -> None:
    for key in ("tokens", "merges"):
        metadata = {k: v for k, v in TINY["gpt-2"].items() if k != G + key}
        with pytest.raises(FileFormatError, match=f"{key} is missing"):
            load_tokenizer(metadata)
    with pytest.raises(FileFormatError, match="scores"):
        load_tokenizer({**TINY["spm"], G + "scores": [0.0]})
    bad = sentence_piece()
    bad[G + "tokens"] = [text.replace("<0x41>", "<byte>") for text in bad[G + "tokens"]]
    with pytest.raises(FileFormatError, match="byte token"):
        load_tokenizer(bad).decode([3 + 0x41])


def test_empty_tokens_have_no_equal() -> None:
    tokenizer = added(1, "", "")
    assert tokenizer.encode("a") == BPE.encode("a")


def test_long_texts_take_a_reasonable_time() -> None:
    text = "a" * 50_000 + " " * 50_000 + "é" * 20_000
    for tokenizer in (BPE, TOKENIZERS["spm-unspaced"]):
        assert tokenizer.decode(tokenizer.encode(text)) == text
