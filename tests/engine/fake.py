"""A model that computes nothing but notices everything: its logits are a hash of what it has seen.

It stores each token in the slot that the batch says, and reads a sequence's whole history back
through its page tables, as far as each cache group's window sees: a wrong page, position or roll
back changes every logit.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from satchel.runtime.batch import (
    MAX_WANTED,
    NO_PAGE,
    PAGE,
    RANKED,
    STRIP,
    Batch,
    CacheGroup,
    Moves,
    Sizes,
)

EMPTY = -1
STATE_DIM = 8


def weight_of(tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """How much is attended to tokens, as if that depended on them alone."""
    return (tokens * 7919 % 1009).astype(np.float32)


class FakeModel:
    """`reply` maps a history to the token that must follow; without it, hashes decide."""

    def __init__(
        self,
        *,
        vocab_size: int = 300,
        context_length: int = 256,
        max_batch: int = 32,
        n_pages: int | Sequence[int] = 16,
        windows: Sequence[int | None] = (None,),
        reply: Callable[[Sequence[int]], int] | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.context_length = context_length
        self.max_batch = max_batch
        self.windows = list(windows)
        counts = [n_pages] * len(windows) if isinstance(n_pages, int) else n_pages
        self.groups = tuple(
            CacheGroup(window, n, PAGE * 8) for window, n in zip(windows, counts, strict=True)
        )
        self.reply = reply
        self.slots = [np.full((n, PAGE), EMPTY, dtype=np.int64) for n in counts]
        self.batches: list[Batch] = []
        self.error: Exception | None = None  # raised by the next run
        self.maxima = np.empty((0, 0), np.float32)
        self.ranked = ranks_of(np.empty((0, vocab_size), np.float32))
        self.states = np.empty((0, STATE_DIM), np.float32)
        self.n_copies = 0
        self.discarded: list[tuple[int, int]] = []
        self.closed = False
        self.fingerprint = "fake"
        self.sizes = Sizes(1000, sum(g.n_pages * g.page_bytes for g in self.groups), 100)

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        assert not self.closed, "run after close"
        self.check(batch)
        self.batches.append(batch)
        if self.error:
            error, self.error = self.error, None
            raise error
        for slots, table in zip(self.slots, batch.tables, strict=True):
            pages = table[batch.sequences, batch.positions // PAGE]
            slots[pages, batch.positions % PAGE] = batch.tokens
        rows = [self.row(self.seen(batch, index)) for index in batch.wanted]
        logits = np.array(rows, dtype=np.float32).reshape(-1, self.vocab_size)
        starts = range(0, self.vocab_size, STRIP)
        self.maxima = np.maximum.reduceat(logits, starts, axis=1)
        self.ranked = ranks_of(logits)
        embedded = () if batch.embedded is None else batch.embedded
        states = [self.row(self.seen(batch, index))[:STATE_DIM] for index in embedded]
        self.states = np.array(states, np.float32).reshape(-1, STATE_DIM)
        self.last_logits = logits
        return logits

    def run_again(self, tokens: Sequence[int]) -> None:
        last, logits = self.batches[-1], self.last_logits
        assert last.n_tokens == len(last.wanted) == len(last.tables[0]) == len(tokens)
        assert last.embedded is None
        positions = last.positions + 1
        assert np.all(positions % PAGE), "a page begins"
        maxima, ranked = self.maxima, self.ranked
        logits[:] = self.run(replace(last, tokens=np.array(tokens, np.int32), positions=positions))
        maxima[:] = self.maxima
        for old, new in zip(ranked, self.ranked, strict=True):
            old[:] = new
        self.last_logits, self.maxima, self.ranked = logits, maxima, ranked

    def check(self, batch: Batch) -> None:
        """Asserts what every batch must keep."""
        n = batch.n_tokens
        assert 0 < n <= self.max_batch
        assert len(batch.positions) == len(batch.sequences) == n
        assert len(batch.wanted) <= MAX_WANTED
        for array in (batch.tokens, batch.positions, batch.sequences, *batch.tables, batch.wanted):
            assert array.dtype == np.int32
        assert np.all((batch.tokens >= 0) & (batch.tokens < self.vocab_size))
        assert np.all((batch.positions >= 0) & (batch.positions < self.context_length))
        assert np.all(np.diff(batch.wanted) > 0)
        for group, table in zip(self.groups, batch.tables, strict=True):
            pages = table[batch.sequences, batch.positions // PAGE]
            assert np.all((pages >= 0) & (pages < group.n_pages))
            slots = pages.astype(np.int64) * PAGE + batch.positions % PAGE
            assert len(np.unique(slots)) == n, "two tokens in one slot"
        for row in range(len(batch.tables[0])):
            assert np.all(np.diff(batch.positions[batch.sequences == row]) == 1)

    def seen(self, batch: Batch, index: int) -> list[list[int]]:
        """What each group sees from a token of the batch on, as its pages have it."""
        position, found = int(batch.positions[index]), list[list[int]]()
        for group, slots, table in zip(self.groups, self.slots, batch.tables, strict=True):
            positions = np.arange(group.first_seen(position), position + 1)
            pages = table[batch.sequences[index], positions // PAGE]
            assert np.all(pages != NO_PAGE), "a page that was let go too early"
            tokens = slots[pages, positions % PAGE]
            assert np.all(tokens != EMPTY), "a slot that was never filled"
            found.append(tokens.tolist())
        return found

    def logits(self, history: Sequence[int]) -> npt.NDArray[np.float32]:
        """The row that follows a history: [vocab]."""
        return self.row([history[group.first_seen(len(history) - 1) :] for group in self.groups])

    def row(self, seen: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        """The row that follows what each group sees: [vocab]."""
        seed = 0
        for tokens in seen:
            seed = zlib.crc32(np.array(tokens, dtype=np.int64).tobytes(), seed)
        row = np.random.default_rng(seed).normal(size=self.vocab_size).astype(np.float32)
        if self.reply:
            row[self.reply(seen[0])] = 40
        return row

    def discard_pages(self, group: int, pages: Sequence[int]) -> None:
        self.discarded += [(group, page) for page in pages]
        self.slots[group][pages] = EMPTY

    def copy_page(self, group: int, source: int, target: int) -> None:
        self.n_copies += 1
        self.slots[group][target] = self.slots[group][source]

    def read_page(self, group: int, page: int) -> bytes:
        return self.slots[group][page].tobytes()

    def mass(self, pages: Sequence[int]) -> npt.NDArray[np.float32]:
        tokens = self.slots[self.windows.index(None)][list(pages)].reshape(-1)
        return weight_of(tokens)

    def move(self, moves: Sequence[Moves]) -> None:
        for slots, one in zip(self.slots, moves, strict=True):
            before = slots.copy()
            for target, sources, shifts in zip(one.targets, one.sources, one.shifts, strict=True):
                for slot, (source, shift) in enumerate(zip(sources, shifts, strict=True)):
                    assert source < 0 or 0 <= shift < self.context_length
                    assert source < 0 or source // PAGE not in one.targets
                    if source >= 0:
                        slots[target, slot] = before[source // PAGE, source % PAGE]

    def write_page(self, group: int, page: int, data: bytes) -> None:
        self.slots[group][page] = np.frombuffer(data, np.int64)

    def close(self) -> None:
        self.closed = True


def ranks_of(
    logits: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
    """What `Model.ranked` is for rows of logits."""
    ranked = np.full((len(logits), RANKED), -1, np.int32)
    if logits.shape[1] >= RANKED:
        ranked[:] = np.argsort(-logits, axis=1, kind="stable")[:, :RANKED]
        ranked[~np.isfinite(logits.max(axis=1, initial=-np.inf)), 0] = -1
    return ranked, np.take_along_axis(logits, ranked, axis=1)


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
