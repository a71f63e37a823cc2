"""The conversations of a model, for those who look: a request that begins with the tokens of an
earlier one, as the next turn does, goes on with its session.

Nothing is computed or kept here. What is known of a request's tokens the engine finds by itself, in
memory (engine.prefix) or on disk (engine.saved), whoever asks.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from satchel.api import LLM, Session


@dataclass(eq=False)
class Kept:
    """A session, and its tokens."""

    id: int
    session: Session
    tokens: tuple[int, ...] = ()
    n_prompt: int = 0  # of these, how many were asked, and not answered
    is_busy: bool = True
    n_requests: int = 0
    used_s: float = field(default_factory=time.monotonic)


class Sessions:
    """The sessions of one model; its methods may be called by any thread."""

    def __init__(self, llm: LLM, most: int) -> None:
        """At most `most` idle ones are kept."""
        self._llm = llm
        self._most = most
        self._lock = threading.Lock()
        self._kept: list[Kept] = []
        self._made = 0

    def take(self, prompt: Sequence[int]) -> Kept:
        """The idle session that begins most like the prompt, or a new one.

        One that would lose more than half of what it was asked is left alone.
        """
        with self._lock:
            known = [
                (n, kept)
                for kept in self._kept
                if not kept.is_busy and kept.n_prompt <= 2 * (n := shared(kept.tokens, prompt))
            ]
            if known:
                kept = max(known, key=lambda pair: pair[0])[1]
            else:
                kept = Kept(self._made, self._llm.session())
                self._made += 1
                self._kept.append(kept)
            kept.is_busy = True
            return kept

    def give(self, kept: Kept, prompt: Sequence[int], answer: Sequence[int] = ()) -> None:
        """Puts a session back that has computed these now; the longest idle one may go.

        One with no prompt has failed, and is dropped.
        """
        with self._lock:
            kept.tokens, kept.n_prompt = (*prompt, *answer), len(prompt)
            kept.is_busy = False
            kept.n_requests += 1
            kept.used_s = time.monotonic()
            if not prompt:
                self._drop(kept)
            idle = sorted((k for k in self._kept if not k.is_busy), key=lambda k: k.used_s)
            for old in idle[: max(0, len(idle) - self._most)]:
                self._drop(old)

    def put_back(self, kept: Kept) -> None:
        """Puts a session back that has not been used after all."""
        with self._lock:
            kept.is_busy = False
            if not kept.tokens:
                self._drop(kept)

    def list(self) -> list[Kept]:
        """All of them, busy or idle."""
        with self._lock:
            return list(self._kept)

    def close(self) -> None:
        """Ends all sessions."""
        with self._lock:
            for kept in list(self._kept):
                self._drop(kept)

    def _drop(self, kept: Kept) -> None:
        self._kept.remove(kept)
        kept.session.close()


def shared(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
