"""Tokens to text as they come: no character is given out before all of its bytes are there."""

from __future__ import annotations

import codecs
from collections.abc import Collection

from satchel.text.tokenizer import Tokenizer


class Detokenizer:
    """Turns one stream of tokens into text; all texts together are what `decode` makes of them.

    A stream that goes on after a prompt keeps its first space. With `at_start` the tokens are a
    text of their own, and the space that some models put before a text is dropped. Of special
    tokens that are skipped, those `shown` are not.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skip_special: bool = True,
        at_start: bool = False,
        shown: Collection[int] = (),
    ) -> None:
        self._tokenizer, self._known = tokenizer, tokenizer.shown
        self._shown = shown
        self._skip_special = skip_special
        self._at_start = at_start
        # whether texts of tokens by themselves are all it takes: while no character is half there
        self._may_be_usual = skip_special and not at_start and not shown
        self._is_usual = self._may_be_usual
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """The text that the token completes, often "". Raises TextError for an unknown id."""
        if self._is_usual:
            text = self._known.get(token)
            if text is None:
                text = self._tokenizer.shown_text(token)
            if text is not None:
                return text
        text = self._push(token)
        self._is_usual = self._may_be_usual and not self._decoder.getstate()[0]
        return text

    def _push(self, token: int) -> str:
        special = self._skip_special and self._tokenizer.is_special(token)
        if special and token not in self._shown:
            return ""
        piece = self._tokenizer.piece(token)
        if self._at_start and piece:
            self._at_start = False
            piece = self._tokenizer.decode_bytes([token], skip_special=False, at_start=True)
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """What is left at the end: U+FFFD when a character was never completed, else ""."""
        return self._decoder.decode(b"", final=True)
