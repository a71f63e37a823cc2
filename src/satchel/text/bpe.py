"""Byte-level BPE: a word's bytes, each written as a printable character, merged by the file's list.

The characters for bytes are GPT-2's (Radford et al., 2019): printable Latin-1 stands for itself,
the others for what follows U+0100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from types import MethodType
from typing import Any
from weakref import proxy

from satchel.base.errors import FileFormatError
from satchel.text.merge import merge
from satchel.text.pre_tokenizers import PreTokenizer
from satchel.text.vocabulary import Kind, Vocabulary, read_list

_PRINTABLE = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
_UNPRINTABLE = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_TO_LETTER = {byte: byte for byte in _PRINTABLE} | {
    byte: 0x100 + i for i, byte in enumerate(_UNPRINTABLE)
}
LETTER_TO_BYTE = {letter: byte for byte, letter in BYTE_TO_LETTER.items()}
CACHED_LENGTH, CACHED_WORDS = 64, 1 << 15  # longer words seldom come again


class ByteLevel:
    """Text without special tokens to ids, and an id to its bytes."""

    def __init__(
        self, vocabulary: Vocabulary, metadata: Mapping[str, Any], words: PreTokenizer
    ) -> None:
        self.vocabulary = vocabulary
        self._words = words
        merges: list[str] = read_list(metadata, "merges", str)
        self._ranks = dict(zip(merges, range(len(merges)), strict=True))
        if len(self._ranks) != len(merges):  # of a pair listed twice, the first counts
            self._ranks = dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))
        self._known_word = known_word(self._encode_word)

    @cached_property
    def _cut(self) -> Callable[[str], list[str]]:
        return self._words.compiled()

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which nothing is special."""
        ids: list[int] = []
        for word in self._cut(text):
            encode = self._known_word if len(word) <= CACHED_LENGTH else self._encode_word
            ids.extend(encode(word))
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        text, kind = self.vocabulary.texts[token], self.vocabulary.kinds[token]
        if kind == Kind.NORMAL and token not in self.vocabulary.structural:
            try:
                return bytes([LETTER_TO_BYTE[ord(letter)] for letter in text])
            except KeyError:  # a letter that stands for itself
                return b"".join(
                    bytes((LETTER_TO_BYTE[code],)) if code in LETTER_TO_BYTE else chr(code).encode()
                    for code in map(ord, text)
                )
        return special_piece(text, kind)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        letters = word.encode().decode("latin-1").translate(BYTE_TO_LETTER)
        ids = self.vocabulary.ids
        if self._words.whole_words and letters in ids:
            return (ids[letters],)
        found: list[int] = []
        for piece in merge(letters, self._rank):
            token = ids.get(piece)
            if token is not None:
                found.append(token)
            else:  # the list makes a piece that is no token: its bytes serve, if they are tokens
                found.extend(ids[letter] for letter in piece if letter in ids)
        return tuple(found)

    def _rank(self, left: str, right: str) -> int | None:
        return self._ranks.get(f"{left} {right}")


def known_word(encode_word: MethodType) -> Callable[[str], tuple[int, ...]]:
    """A coder's method, with a memory for the words of late. It does not hold the coder: that may
    take 50 MB, which go when their last user goes.
    """
    coder = proxy(encode_word.__self__)
    return lru_cache(CACHED_WORDS)(partial(encode_word.__func__, coder))


def special_piece(text: str, kind: int) -> bytes:
    """The bytes of a token that is not normal text. Raises FileFormatError."""
    if kind == Kind.BYTE:
        try:
            return bytes((int(text[3:5], 16),))
        except ValueError:
            raise FileFormatError(
                f"the byte token {text!r} is not like <0x0A>; convert the model again"
            ) from None
    if kind in (Kind.UNUSED, Kind.UNDEFINED):
        return b""
    return text.encode()
