"""Stop strings in a text that arrives in pieces, cut anywhere."""

from __future__ import annotations

from collections.abc import Sequence

from satchel.base.errors import OptionError


class Stops:
    """Lets text through up to the first stop string, and no part of that.

    What comes out is, however the text was cut, the text before the stop string that begins first.
    Only text that may be the beginning of a stop string is held back.
    """

    def __init__(self, strings: Sequence[str] = ()) -> None:
        """Raises OptionError for an empty stop string, which would stop everything."""
        if "" in strings:
            raise OptionError("stop: a stop string is empty; give one character or more")
        self.strings = tuple(dict.fromkeys(strings))
        self.longest = max(map(len, self.strings), default=0)
        self.held = ""
        self.found = False  # a stop string has come; no more text is let through

    def push(self, piece: str) -> str:
        """The text that is certain to stand before any stop string, now that `piece` has come."""
        if not self.strings:
            return piece
        if self.found:
            return ""
        text = self.held + piece
        begin, end = self._unfinished(text), self._first(text)
        self.found = end < len(text) and end <= begin
        # a stop string that begins earlier may yet be finished: it would hide the one found
        self.held = "" if self.found else text[begin:]
        return text[: min(begin, end)]

    def flush(self) -> str:
        """The rest of the text before a stop string; nothing more will come."""
        text, self.held = self.held, ""
        end = self._first(text)
        self.found = self.found or end < len(text)
        return text[:end]

    def _first(self, text: str) -> int:
        """Where the first stop string begins; the text's length when there is none."""
        places = (text.find(stop) for stop in self.strings)
        return min((place for place in places if place >= 0), default=len(text))

    def _unfinished(self, text: str) -> int:
        """Where a stop string first begins that the text ends in the middle of; else its length."""
        for begin in range(max(0, len(text) - self.longest + 1), len(text)):
            tail = text[begin:]
            if any(len(stop) > len(tail) and stop.startswith(tail) for stop in self.strings):
                return begin
        return len(text)
