"""JSON that comes a character at a time (RFC 8259): where in it we are, if it still is JSON."""

from __future__ import annotations

import json
import math
import re

DEPTH = 64  # of nested lists and objects; what is deeper is taken for broken
LONGEST = 1000  # digits of a number
SPACES = " \t\n\r"
_SCALAR = re.compile(r"true|false|null|-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")
_CLOSERS = {"{": "}", "[": "]"}


class BrokenTextError(Exception):
    """The text is not what it began as; whoever reads it goes on with it as plain text."""


class JsonText:
    """Follows one object or list from its first character to its last.

    Of an object, `key` is the name of the outermost member that was read last.
    """

    def __init__(self) -> None:
        self.key = ""
        self._closers: list[str] = []
        # or item, key, member, colon, comma: an item is a value or a closer, a member a key or one
        self._expects = "value"
        self._token: list[str] = []  # of the string or the scalar in the making
        self._is_key = False
        self._is_escaped = False

    @property
    def depth(self) -> int:
        """How many lists and objects are open."""
        return len(self._closers)

    @property
    def is_in_string(self) -> bool:
        """Whether the next character belongs to a string, or ends it."""
        return self._token[:1] == ['"']

    @property
    def is_at_key(self) -> bool:
        """Whether the name of a member comes next, or is in the making."""
        return self._expects in ("key", "member")

    @property
    def is_after_value(self) -> bool:
        """Whether a value has just ended, and a comma or an end must follow."""
        return self._expects == "comma" and not self._token

    @property
    def is_done(self) -> bool:
        """Whether the last character has come."""
        return self.is_after_value and not self._closers

    def push(self, char: str) -> bool:
        """Takes the next character; whether it is part of an outermost member's value.

        Raises BrokenTextError where it can't follow; "" is the end of the text.
        """
        before = self.depth
        if not char or self.is_done:
            raise BrokenTextError
        if self.is_in_string:
            self._in_string(char)
            return before > 1 or not self._is_key
        if self._token or (before and self._expects in ("value", "item") and _is_scalar(char)):
            if _is_scalar(char):
                self._token.append(char)
                return True
            self._end_scalar()
        if char not in SPACES:
            self._structure(char)
        opens = self.is_in_string and not self._is_key
        return before > 1 or self.depth > 1 or opens

    def _in_string(self, char: str) -> None:
        self._token.append(char)
        if self._is_escaped or char == "\\":
            self._is_escaped = not self._is_escaped
        elif char == '"':
            try:
                text = json.loads("".join(self._token))
                text.encode()  # half a surrogate pair is no text
            except ValueError:
                raise BrokenTextError from None
            self._token.clear()
            self._expects = "colon" if self._is_key else "comma"
            if self._is_key and self.depth == 1:
                self.key = text

    def _end_scalar(self) -> None:
        scalar = "".join(self._token)
        if len(scalar) > LONGEST or not _SCALAR.fullmatch(scalar):
            raise BrokenTextError
        if scalar[-1].isdigit() and math.isinf(float(scalar)):
            raise BrokenTextError  # JSON has no such number
        self._token.clear()
        self._expects = "comma"

    def _structure(self, char: str) -> None:
        expects = self._expects
        if char == '"' and expects in ("value", "item", "key", "member") and self._closers:
            self._is_key = expects in ("key", "member")
            self._token.append(char)
        elif char in _CLOSERS and expects in ("value", "item") and self.depth < DEPTH:
            self._closers.append(_CLOSERS[char])
            self._expects = "member" if char == "{" else "item"
        elif self._closers and char == self._closers[-1] and expects in ("comma", "item", "member"):
            self._closers.pop()
            self._expects = "comma"
        elif char == ":" and expects == "colon":
            self._expects = "value"
        elif char == "," and expects == "comma":
            self._expects = "key" if self._closers[-1] == "}" else "value"
        else:
            raise BrokenTextError


def _is_scalar(char: str) -> bool:
    return char.isascii() and (char.isalnum() or char in "+-.")
