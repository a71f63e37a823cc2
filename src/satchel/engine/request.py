"""One ask of the engine: tokens to catch up with, what to read from the logits, when it is done."""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from satchel.engine.logprobs import TokenLogprob, token_logprob
from satchel.engine.sampler import Sampler
from satchel.engine.sequence import Sequence
from satchel.engine.stops import Stops
from satchel.engine.terms import Terms

if TYPE_CHECKING:
    from satchel.engine.rows import Logits, Rows

FinishReason: TypeAlias = Literal["stop", "length", "cancelled", "timeout"]
NO_TERMS = Terms()


@dataclass(frozen=True)
class Stats:
    """What an answer took.

    `finish_reason` is "stop" (the model ended its answer, or a stop string came), "length" (as many
    tokens as asked for, or the context is full), "cancelled" or "timeout" (its time was over). The
    time to the first token counts from the moment the request was made; speeds are 0 where there
    was nothing to measure.
    """

    prompt_tokens: int
    cached_tokens: int  # of these, the ones that were known already
    generated_tokens: int
    dropped_tokens: int  # of prompt and answer, those that were forgotten; see `load`
    time_to_first_token_ms: float
    prompt_tokens_per_s: float
    generated_tokens_per_s: float
    finish_reason: FinishReason
    mask_ms: float = 0.0  # to find out what a grammar allows next, on average; beside the model


@dataclass(slots=True, eq=False)  # not frozen, nor a tuple: one is made for each token
class Delta:
    """What a step brought a request. The last one has `stats` or, if it failed, `error`."""

    request: Request
    tokens: tuple[int, ...] = ()
    text: str = ""
    stats: Stats | None = None
    error: Exception | None = None
    logprobs: tuple[TokenLogprob, ...] = ()  # of each token, if they were asked for

    @property
    def is_last(self) -> bool:
        """Whether the request ends with this."""
        return self.stats is not None or self.error is not None


class Detokenizer(Protocol):
    """Turns tokens into text, and never cuts a character."""

    def push(self, token: int, /) -> str:
        """The text that `token` completes."""
        ...

    def flush(self) -> str:
        """The text of what was held back."""
        ...


class Request(ABC):
    """What the scheduler needs to know of any ask.

    `deliver` is called with each Delta by the thread that runs the engine; it must not block. Only
    that thread changes a request, but for `cancel`, which any thread may call at any time.
    """

    def __init__(
        self,
        prompt: Items[int],
        sequence: Sequence,
        deliver: Callable[[Delta], None],
        terms: Terms = NO_TERMS,
    ) -> None:
        self.prompt = tuple(prompt)
        self.priority, self.owner = terms.priority, terms.owner
        self.sequence = sequence
        sequence.tokens = list(prompt)
        self.deliver = deliver
        self.cancelled = False
        self.n_cached = 0  # how much of the prompt was known when the request began
        self.n_generated = 0
        self.made_s = time.perf_counter()
        self.due_s = math.inf if terms.timeout_s is None else self.made_s + terms.timeout_s
        self.begun_s = 0.0
        self.n_begun = 0
        self.first_s = 0.0  # when the prompt was done, and the first token there

    def cancel(self) -> None:
        """Ends the request before the next step."""
        self.cancelled = True
        self.due_s = -math.inf

    def break_off(self) -> Delta:
        """The last delta of a request that was cancelled, or whose time is over: it is `due_s`."""
        return self.finish("cancelled" if self.cancelled else "timeout")

    def begin(self) -> None:
        """The scheduler has taken this up, for the first time or again."""
        self.begun_s = self.begun_s or time.perf_counter()
        self.n_begun += 1
        self.note_cached()

    def note_cached(self) -> None:
        """So much of it was known: what it has computed itself, before it had to wait, is not."""
        if self.n_begun == 1:
            self.n_cached = self.sequence.n_cached

    @property
    def n_reusable(self) -> int:
        """How many of the sequence's first tokens need not be computed where they are known.

        The last always is, for it is its logits that tell what follows.
        """
        first = self.first_wanted if self.first_embedded is None else self.first_embedded
        return min(len(self.sequence.tokens) - 1, self.first_wanted, first)

    @property
    @abstractmethod
    def first_wanted(self) -> int:
        """The first position whose logits are still wanted; all after it are wanted too."""

    @property
    def first_embedded(self) -> int | None:
        """The first position whose final state is still wanted, and all after it; None: none."""
        return None

    def read_states(self, rows: Rows) -> None:
        """Takes the final states [n, dim] of the positions just computed that it embeds."""
        assert not len(rows), "no states were wanted"

    @abstractmethod
    def read(self, logits: Logits, rows: slice) -> list[int]:
        """The tokens that some of a step's logits lead to: those of the wanted positions that were
        just computed.
        """

    @abstractmethod
    def accept(self, tokens: list[int]) -> Delta | None:
        """Goes on by these tokens; what that brings, None when nothing yet."""

    def finish(self, reason: FinishReason, tokens: Items[int] = (), text: str = "") -> Delta:
        """The last delta."""
        return self.delta(tokens, text, self.stats(reason))

    def delta(self, tokens: Items[int], text: str, stats: Stats | None = None) -> Delta:
        """What has come; with stats, the last."""
        return Delta(self, tuple(tokens), text, stats)

    def stats(self, reason: FinishReason) -> Stats:
        """What it took until now."""
        now = time.perf_counter()
        first = self.first_s or now
        return Stats(
            prompt_tokens=len(self.prompt),
            cached_tokens=self.n_cached,
            generated_tokens=self.n_generated,
            dropped_tokens=self.sequence.n_dropped,
            time_to_first_token_ms=1000 * (first - self.made_s) if self.n_generated else 0.0,
            prompt_tokens_per_s=_rate(len(self.prompt) - self.n_cached, first - self.begun_s)
            if self.first_s
            else 0.0,
            generated_tokens_per_s=_rate(self.n_generated - 1, now - first),
            finish_reason=reason,
        )


def _rate(count: int, seconds: float) -> float:
    return count / seconds if count > 0 and seconds > 0 else 0.0


class Generation(Request):
    """Extends the prompt, token by token, into text."""

    def __init__(
        self,
        prompt: Items[int],
        sequence: Sequence,
        deliver: Callable[[Delta], None],
        *,
        sampler: Sampler,
        detokenizer: Detokenizer,
        max_tokens: int,
        stop_ids: frozenset[int] = frozenset(),
        stops: Items[str] = (),
        terms: Terms = NO_TERMS,
    ) -> None:
        """`max_tokens` of 0 computes the prompt alone. Raises OptionError for an empty stop."""
        super().__init__(prompt, sequence, deliver, terms)
        self.sampler = sampler
        self.detokenizer = detokenizer
        self.max_tokens = max_tokens
        self.stop_ids = stop_ids
        self.constraint = sampler.constraint
        self.stops = held = Stops(stops)
        push = detokenizer.push
        self._text_of: Callable[[int], str] = push
        if stops:
            self._text_of = lambda token: held.push(push(token))
        self.n_top = sampler.params.logprobs
        self.logprobs: list[TokenLogprob] = []  # of the tokens that the last step led to

    @property
    def first_wanted(self) -> int:
        return len(self.sequence.tokens) - (1 if self.max_tokens else 0)

    def read(self, logits: Logits, rows: slice) -> list[int]:
        place, n_top = rows.start, self.n_top
        if place == rows.stop:  # more of the prompt is to come
            return []
        token = self.sampler.pick(logits, place, self.sequence.tokens)
        if n_top is not None:
            found = token_logprob(logits.rows[place], logits.maxima[place], token, n_top)
            self.logprobs = [found]
        return [token] if self.constraint is None else [token, *self.sampler.forced()]

    def accept(self, tokens: list[int]) -> Delta | None:
        text = ""
        for number, token in enumerate(tokens, 1):
            self.sequence.tokens.append(token)
            self.n_generated += 1
            if not self.first_s:
                self.first_s = time.perf_counter()
            is_end = token in self.stop_ids
            if not is_end:
                text += self._text_of(token)
            if self.constraint is not None and number == len(tokens):
                is_end = is_end or self.constraint.is_done
            if is_end or self.stops.found:
                return self.finish("stop", tokens[:number], text)
            if self.n_generated == self.max_tokens:
                return self.finish("length", tokens[:number], text)
        if not self.max_tokens and not self.sequence.n_pending:
            self.first_s = time.perf_counter()
            return self.finish("length")
        return self.delta(tokens, text) if tokens else None

    def delta(self, tokens: Items[int], text: str, stats: Stats | None = None) -> Delta:
        logprobs = tuple(self.logprobs[: len(tokens)]) if self.logprobs else ()
        return Delta(self, tuple(tokens), text, stats, None, logprobs)

    def finish(self, reason: FinishReason, tokens: Items[int] = (), text: str = "") -> Delta:
        text += self.stops.push(self.detokenizer.flush()) + self.stops.flush()
        if reason == "length" and self.stops.found:
            reason = "stop"
        return super().finish(reason, tokens, text)

    def stats(self, reason: FinishReason) -> Stats:
        mask_ms = 0.0 if self.constraint is None else self.constraint.mask_ms
        return replace(super().stats(reason), mask_ms=mask_ms)


class Scoring(Request):
    """Reads the logits of every position of its tokens."""

    def __init__(
        self,
        prompt: Items[int],
        sequence: Sequence,
        deliver: Callable[[Delta], None],
        vocab_size: int,
    ) -> None:
        super().__init__(prompt, sequence, deliver)
        self.logits = np.empty((len(prompt), vocab_size), dtype=np.float32)
        self.n_read = 0

    @property
    def first_wanted(self) -> int:
        return self.n_read

    def read(self, logits: Logits, rows: slice) -> list[int]:
        n_read = self.n_read + rows.stop - rows.start
        self.logits[self.n_read : n_read] = logits.rows[rows]
        self.n_read = n_read
        return []

    def accept(self, tokens: list[int]) -> Delta | None:
        if self.sequence.n_pending:
            return None
        self.first_s = time.perf_counter()
        return self.finish("length", tokens)
