"""The responses that the server remembers, so that others can follow on them: the latest ones."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from satchel.serve.failures import RefusedError

MOST = 256
MOST_CHARACTERS = 16 * 2**20


@dataclass(frozen=True)
class Stored:
    """A response, and the conversation up to it, without the instructions."""

    response: dict[str, Any]
    messages: list[dict[str, Any]]
    size: int  # characters


class NoResponseError(RefusedError):
    """There is no such response, or it was forgotten."""

    def __init__(self, status: int, name: str, field: str | None = None) -> None:
        told = f"{field}: " if field else ""
        super().__init__(
            status,
            "response_not_found",
            f"{told}there is no response {name[:100]!r}; only the latest are kept, in memory",
        )
        self.field = field


class ResponseStore:
    """Used by the event loop's thread alone."""

    def __init__(self, most: int = MOST, most_characters: int = MOST_CHARACTERS) -> None:
        self._most, self._most_characters = most, most_characters
        self._stored: OrderedDict[str, Stored] = OrderedDict()  # the longest unused first
        self._n_characters = 0

    def keep(self, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Remembers one, and forgets the longest unused."""
        size = len(json.dumps([response, messages]))
        self._stored[response["id"]] = Stored(response, messages, size)
        self._n_characters += size
        while len(self._stored) > self._most or self._n_characters > self._most_characters:
            _, old = self._stored.popitem(last=False)
            self._n_characters -= old.size

    def find(self, name: str) -> Stored | None:
        """One of them, which is then the latest used."""
        if name in self._stored:
            self._stored.move_to_end(name)
        return self._stored.get(name)

    def forget(self, name: str) -> bool:
        """Whether it was there."""
        stored = self._stored.pop(name, None)
        self._n_characters -= stored.size if stored else 0
        return stored is not None
