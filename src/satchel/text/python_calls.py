"""Keyword arguments as Python writes them, turned into JSON a character at a time."""

from __future__ import annotations

import json
import re
from typing import cast

from satchel.text.json_text import BrokenTextError, JsonText

_NAME = re.compile(r"[^\W\d][\w.-]*")
_WORDS = {"True": "true", "False": "false", "None": "null"}
_ESCAPES = {
    "'": "'", '"': '\\"', "\\": "\\\\", "\n": "", "n": "\\n", "t": "\\t", "r": "\\r", "b": "\\b",
    "f": "\\f", "a": "\\u0007", "v": "\\u000b", "0": "\\u0000", "x": "\\u00", "u": "\\u",
}  # fmt: skip


def is_name(text: str) -> bool:
    """Whether a text may name a tool or an argument."""
    return bool(_NAME.fullmatch(text))


class PythonValues:
    """Writes `a=1, b='x'` as `{"a": 1, "b": "x"}`; knows texts, numbers, lists, dicts, True, None.

    Raises BrokenTextError for what is none of these.
    """

    def __init__(self) -> None:
        self._json = JsonText()
        self._quote = ""  # that ends the string that we are in
        self._is_escaped = False
        self._word = ""  # a number or a name in the making
        self._n = 0

    def open(self) -> str:
        """The beginning of the object."""
        return self._put("{")

    def begin(self, name: str) -> str:
        """The beginning of a member, whose value must follow."""
        self._n += 1
        comma = ", " if self._n > 1 else ""
        return self._put(f"{comma}{json.dumps(name, ensure_ascii=False)}: ")

    def is_between(self, char: str) -> bool:
        """Whether the character ends the value, and is no part of it."""
        return not self._quote and self._json.depth == 1 and char in (",", ")")

    def push(self, char: str) -> str:
        """What the value's next character adds."""
        if not char:
            raise BrokenTextError
        if self._quote:
            return self._put(self._in_string(char))
        if char.isascii() and (char.isalnum() or char in "+-._"):
            self._word += char
            return ""
        word = self.end()
        if char in "'\"":
            self._quote, char = char, '"'
        return word + self._put(char)

    def end(self) -> str:
        """What was held back of a value."""
        word, self._word = self._word, ""
        return self._put(_WORDS.get(word, word))

    def close(self) -> str:
        """The end of the object."""
        return self._put("}")

    def _in_string(self, char: str) -> str:
        if self._is_escaped:
            self._is_escaped = False
            return _ESCAPES.get(char, "\\\\" + json.dumps(char, ensure_ascii=False)[1:-1])
        if char == "\\":
            self._is_escaped = True
            return ""
        if char == self._quote:
            self._quote = ""
            return '"'
        return json.dumps(char, ensure_ascii=False)[1:-1]

    def _put(self, text: str) -> str:
        for char in text:
            self._json.push(char)
        return text


def python_text(value: object) -> str:
    """A value of JSON as Python writes it."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return f"{{{', '.join(f'{python_text(k)}: {python_text(v)}' for k, v in items)}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(python_text, cast('list[object]', value)))}]"
    return json.dumps(value, ensure_ascii=False)
