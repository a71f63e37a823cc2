"""Gemma's way to write arguments, turned into JSON a character at a time.

`{city:<escape>Köln<escape>,days:[1,2],exact:true}`: names without quotes, and texts between two
marks that are tokens of their own, so that nothing in a text needs an escape.
"""

from __future__ import annotations

import json

from satchel.text.json_text import SPACES, BrokenTextError, JsonText

_WORDS = {"True": "true", "False": "false", "None": "null"}


class QuotedValues:
    """Follows one object; raises BrokenTextError for what is none."""

    def __init__(self, quote: str) -> None:
        """`quote` is the mark before and after texts."""
        self._json = JsonText()
        self._quote = quote
        self._held = ""  # what may be the beginning of a mark
        self._word = ""  # a name, a number or a constant in the making
        self._in_text = False

    @property
    def is_done(self) -> bool:
        """Whether the last character has come."""
        return self._json.is_done

    def push(self, char: str) -> str:
        """What the next character adds to the JSON."""
        if not char:
            raise BrokenTextError
        self._held += char
        added = ""
        while self._held and not self._quote.startswith(self._held):
            added += self._take(self._held[0])
            self._held = self._held[1:]
        if self._held == self._quote:
            self._held = ""
            self._in_text = not self._in_text
            added += self._put('"')
        return added

    def _take(self, char: str) -> str:
        """A character that is no part of a mark."""
        if self._in_text:
            return self._put(json.dumps(char, ensure_ascii=False)[1:-1])
        if char not in "{}[]:," and char not in SPACES:
            self._word += char
            return ""
        word, self._word = self._word, ""
        if word and self._json.is_at_key:
            word = json.dumps(word, ensure_ascii=False)
        return self._put(_WORDS.get(word, word) + char)

    def _put(self, text: str) -> str:
        for char in text:
            self._json.push(char)
        return text


def quoted_text(value: object, quote: str) -> str:
    """A value of JSON in this way."""
    if isinstance(value, str):
        return f"{quote}{value}{quote}"
    if isinstance(value, dict):
        pairs: dict[str, object] = value  # pyright: ignore[reportUnknownVariableType]
        return f"{{{','.join(f'{k}:{quoted_text(v, quote)}' for k, v in pairs.items())}}}"
    if isinstance(value, list):
        items: list[object] = value  # pyright: ignore[reportUnknownVariableType]
        return f"[{','.join(quoted_text(one, quote) for one in items)}]"
    return json.dumps(value)
