"""A model that computes nothing but notices everything: its logits are a hash of what it has seen.

It stores each token in the slot that the batch says, and reads a sequence's whole history back
through its page table: a wrong page, position or roll back changes every logit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from satchel.runtime.batch import MAX_WANTED, PAGE, STRIP, Batch

EMPTY = -1
STATE_DIM = 8


class FakeModel:
    """`reply` maps a history to the token that must follow; without it, hashes decide."""

    def __init__(
        self,
        *,
        vocab_size: int = 300,
        context_length: int = 256,
        max_batch: int = 32,
        n_pages: int = 16,
        reply: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.max_batch = max_batch
        self.n_pages = n_pages
        self.page_bytes = PAGE * 8
        self.reply = reply
        self.slots = np.full((n_pages, PAGE), EMPTY, dtype=np.int64)
        self.batches: list[Batch] = []
        self.error: Exception | None = None  # raised by the next run
        self.maxima = np.empty((0, 0), np.float32)
        self.states = np.empty((0, STATE_DIM), np.float32)
        self.closed = False

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        assert not self.closed, "run after close"
        self.check(batch)
        self.batches.append(batch)
        if self.error:
            error, self.error = self.error, None
            raise error
        pages = batch.tables[batch.sequences, batch.positions // PAGE]
        self.slots[pages, batch.positions % PAGE] = batch.tokens
        rows = [self.logits(self.history(batch, index)) for index in batch.wanted]
        logits = np.array(rows, dtype=np.float32).reshape(-1, self.vocab_size)
        starts = range(0, self.vocab_size, STRIP)
        self.maxima = np.maximum.reduceat(logits, starts, axis=1)
        embedded = () if batch.embedded is None else batch.embedded
        states = [self.logits(self.history(batch, index))[:STATE_DIM] for index in embedded]
        self.states = np.array(states, np.float32).reshape(-1, STATE_DIM)
        return logits

    def check(self, batch: Batch) -> None:
        """Asserts what every batch must keep."""
        n = batch.n_tokens
        assert 0 < n <= self.max_batch
        assert len(batch.positions) == len(batch.sequences) == n
        assert len(batch.wanted) <= MAX_WANTED
        for array in (batch.tokens, batch.positions, batch.sequences, batch.tables, batch.wanted):
            assert array.dtype == np.int32
        assert np.all((batch.tokens >= 0) & (batch.tokens < self.vocab_size))
        assert np.all((batch.positions >= 0) & (batch.positions < self.context_length))
        assert np.all(np.diff(batch.wanted) > 0)
        pages = batch.tables[batch.sequences, batch.positions // PAGE]
        assert np.all((pages >= 0) & (pages < self.n_pages))
        slots = pages.astype(np.int64) * PAGE + batch.positions % PAGE
        assert len(np.unique(slots)) == n, "two tokens in one slot"
        for row in range(len(batch.tables)):
            assert np.all(np.diff(batch.positions[batch.sequences == row]) == 1)

    def history(self, batch: Batch, index: int) -> list[int]:
        """The tokens of a sequence up to a token of the batch, as its pages have them."""
        positions = np.arange(batch.positions[index] + 1)
        table = batch.tables[batch.sequences[index]]
        tokens = self.slots[table[positions // PAGE], positions % PAGE]
        assert np.all(tokens != EMPTY), "a slot that was never filled"
        return [int(token) for token in tokens]

    def logits(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        """The row that follows a history: [vocab]."""
        seed = zlib.crc32(np.array(history, dtype=np.int64).tobytes())
        row = np.random.default_rng(seed).normal(size=self.vocab_size).astype(np.float32)
        if self.reply:
            row[self.reply(history)] = 40
        return row

    def close(self) -> None:
        self.closed = True


class Letters:
    """A detokenizer of bytes: token 65 is "A"; tokens above 255 have no text."""

    def __init__(self) -> None:
        self.held = b""

    def push(self, token: int) -> str:
        self.held += bytes([token]) if token < 256 else b""
        try:
            text = self.held.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return ""
            text = self.held.decode(errors="replace")
        self.held = b""
        return text

    def flush(self) -> str:
        text, self.held = self.held.decode(errors="replace"), b""
        return text
