"""SentencePiece as llama.cpp reads it: spaces are ▁, and neighbours that make a token may merge.

The pair whose token has the best score merges first (Kudo and Richardson, 2018,
https://arxiv.org/abs/1808.06226, in its BPE form). What remains a character without a token is
written with one token for each of its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from satchel.base.errors import FileFormatError, TextError
from satchel.text.bpe import CACHED_LENGTH, known_word, special_piece
from satchel.text.merge import merge
from satchel.text.vocabulary import Kind, Vocabulary, read_list

SPACE = "▁"


class SentencePiece:
    """Text without special tokens to ids, and an id to its bytes."""

    def __init__(self, vocabulary: Vocabulary, metadata: Mapping[str, Any]) -> None:
        self.vocabulary = vocabulary
        self._scores: list[float] = [0.0] * len(vocabulary.texts)
        if "tokenizer.ggml.scores" in metadata:
            self._scores = read_list(metadata, "scores", float, int)
        if len(self._scores) < len(vocabulary.texts):
            raise FileFormatError(
                f"the file lists {len(vocabulary.texts)} tokens but {len(self._scores)} scores;"
                " it is damaged"
            )
        self._known_word = known_word(self._encode_word)

    @cached_property
    def _word_start(self) -> re.Pattern[str]:
        """Where a text may be cut without changing its tokens.

        Before a space, when no token has that space after the character to its left: then no merge
        ever crosses the cut. Words are short and come again, whole texts are neither.
        """
        inside = [text for text in self.vocabulary.texts if SPACE in text.lstrip(SPACE)]
        bridges = {text[i - 1] for text in inside for i in _places(text) if i > 0} | {SPACE}
        return re.compile(f"(?<![{re.escape(''.join(sorted(bridges)))}])(?={SPACE})")

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which nothing is special."""
        ids: list[int] = []
        for word in self._word_start.split(text.replace(" ", SPACE)):
            encode = self._known_word if len(word) <= CACHED_LENGTH else self._encode_word
            ids.extend(encode(word))
        return ids

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        text, kind = self.vocabulary.texts[token], self.vocabulary.kinds[token]
        if kind == Kind.NORMAL and token not in self.vocabulary.structural:
            return text.replace(SPACE, " ").encode()
        return special_piece(text, kind)

    def _encode_word(self, word: str) -> tuple[int, ...]:
        ids = self.vocabulary.ids
        found: list[int] = []
        for piece in merge(word, self._rank):
            token = ids.get(piece)
            if token is not None:
                found.append(token)
            else:
                found.extend(self._byte(byte) for byte in piece.encode())
        return tuple(found)

    def _rank(self, left: str, right: str) -> float | None:
        token = self.vocabulary.ids.get(left + right)
        return None if token is None else -self._scores[token]

    def _byte(self, byte: int) -> int:
        ids = self.vocabulary.ids
        token = ids.get(f"<0x{byte:02X}>", ids.get(chr(byte)) if byte < 0x80 else None)
        if token is None:
            token = self.vocabulary.unknown
        if token is None:
            raise TextError(f"the model has no token for the byte 0x{byte:02X}; leave it out")
        return token


def _places(text: str) -> list[int]:
    """Where the spaces of a token are that do not follow a space."""
    return [match.start() for match in re.finditer(f"(?<!{SPACE}){SPACE}", text)]
