"""The next token from a row of logits: what biases it, what filters it, and the draw.

In llama.cpp's order and with its defaults: logit bias, penalties, top-k, top-p, min-p, temperature.
A request's own processors come after its bias, its constraint before the filters.
Each request draws from a generator of its own, so its answer depends on its seed alone and never on
what is computed beside it.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import exp
from operator import neg
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from satchel.base.errors import FileFormatError, OptionError
from satchel.engine.constraint import Constraint, allowed_ids
from satchel.engine.rows import WITHIN, largest, strip_maxima
from satchel.runtime.batch import STRIP

if TYPE_CHECKING:
    import numpy.typing as npt

    from satchel.engine.rows import Ids, Row

    Weights: TypeAlias = npt.NDArray[np.float64]
    Processor: TypeAlias = Callable[[tuple[int, ...], Row], Row | None]

COLDEST = 1e-200  # a lower temperature would do the same, but overflow
MAX_LOGPROBS = 1000
ENOUGH = 512  # this many of the likeliest nearly always reach top-p


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. Raises OptionError, naming the field, for a bad value."""

    temperature: float = 0.8  # 0 or less: greedy, the most likely token each time
    top_k: int = 40  # only the k most likely tokens; 0: all
    top_p: float = 0.95  # only the most likely tokens that reach this probability together; 1: all
    min_p: float = 0.05  # only tokens at least this likely, compared to the likeliest; 0: all
    repeat_penalty: float = 1.0  # logits of recent tokens are divided (if < 0: multiplied) by it
    repeat_last_n: int = 64  # how many tokens, prompt included, are recent; 0: none; -1: all
    presence_penalty: float = 0.0  # taken from the logits of recent tokens
    frequency_penalty: float = 0.0  # taken from them as often as they occurred
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])  # -inf bans a token
    seed: int | None = None  # same seed, same answer; None: another one each time
    # each is called with the tokens so far and the logits [vocab], and changes or returns these
    processors: Sequence[Processor] = ()
    logprobs: int | None = None  # tell how likely each token was, and so many likeliest ones

    def __post_init__(self) -> None:
        self._number("temperature", -math.inf, math.inf)
        self._number("top_k", 0, math.inf, whole=True)
        self._number("top_p", 0, 1)
        self._number("min_p", 0, 1)
        self._number("repeat_penalty", 0, math.inf, positive=True)
        self._number("repeat_last_n", -1, math.inf, whole=True)
        self._number("presence_penalty", -math.inf, math.inf)
        self._number("frequency_penalty", -math.inf, math.inf)
        if self.seed is not None:
            self._number("seed", 0, 2**64 - 1, whole=True)
        if self.logprobs is not None:
            self._number("logprobs", 0, MAX_LOGPROBS, whole=True)
        for token, bias in self.logit_bias.items():
            if not is_whole(token) or not is_number(bias) or not bias < math.inf:
                raise OptionError(
                    f"logit_bias: {token!r}: {bias!r} is not a token id and a number (-inf bans)"
                )
        for processor in self.processors:
            if not callable(processor):
                raise OptionError(f"processors: {processor!r} can't be called")

    def _number(
        self, name: str, least: float, most: float, *, whole: bool = False, positive: bool = False
    ) -> None:
        value = getattr(self, name)
        fits = is_whole(value) if whole else is_number(value) and math.isfinite(value)
        if fits and least <= value <= most and not (positive and value == 0):
            return
        kind = "a whole number" if whole else "a number"
        if not math.isinf(most):
            kind += f" from {least} to {most}"
        elif not math.isinf(least):
            kind += f" above {least}" if positive else f" of {least} or more"
        raise OptionError(f"{name}: {value!r} is not {kind}")


def is_whole(value: Any) -> bool:
    """Whether a value is an integer, and not a truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number, and neither a truth value nor NaN."""
    return (is_whole(value) or isinstance(value, float | np.floating)) and value == value


class Sampler:
    """Chooses the tokens of one request.

    Its random numbers are the raw 64-bit outputs of numpy's PCG64(seed), one for each token drawn,
    which numpy keeps the same in all its versions.
    """

    def __init__(
        self, params: SamplingParams, vocab_size: int, constraint: Constraint | None = None
    ) -> None:
        """Raises OptionError when the bias names a token that does not exist."""
        for token in params.logit_bias:
            if not 0 <= token < vocab_size:
                raise OptionError(
                    f"logit_bias: there is no token {token}; ids are 0 to {vocab_size - 1}"
                )
        self.params = params
        self.constraint = constraint
        self.biased_ids = np.array(list(params.logit_bias), dtype=np.intp)
        self.biases = np.array(list(params.logit_bias.values()), dtype=np.float32)
        self.random = None if params.temperature <= 0 else np.random.PCG64(params.seed)
        self.is_ranked = 0 < params.top_k < vocab_size
        self.temperature = max(params.temperature, COLDEST)
        self.penalizes = bool(params.repeat_last_n) and (
            params.repeat_penalty != 1
            or params.presence_penalty != 0
            or params.frequency_penalty != 0
        )

    @property
    def is_done(self) -> bool:
        """Whether a constraint says that the answer is complete."""
        return self.constraint is not None and self.constraint.is_done

    def pick(self, logits: Row, history: Sequence[int], maxima: Row | None = None) -> int:
        """The token that follows `history`, given its row of logits [vocab], which is not changed.

        `maxima` are those of the row's strips, as runtime.batch.Model has them; found here if not
        given. Of equal logits the lower id comes first. The constraint goes on by the token. Raises
        FileFormatError for logits that are not numbers, OptionError when every token is banned or a
        processor fails, and what the constraint raises.
        """
        token = self._choose(logits, history, strip_maxima(logits) if maxima is None else maxima)
        if self.constraint is not None:
            self.constraint.accept(token)
        return token

    def _choose(self, logits: Row, history: Sequence[int], maxima: Row) -> int:
        logits, maxima = self._bias(logits, history, maxima)
        strip = int(maxima.argmax())  # of the first NaN, if there is one
        highest = float(maxima[strip])
        if highest == -math.inf and (causes := self._banning()):
            raise OptionError(f"{causes}: it bans every token; leave one")
        if not math.isfinite(highest):
            raise FileFormatError(
                f"the model computed {highest} as a logit; its file is damaged: fetch it again"
            )
        if self.random is None:
            first = strip * STRIP
            return first + int(logits[first : first + STRIP].argmax())
        random = self.random.random_raw()
        if self.is_ranked:
            few, kept = self._ranked(logits, maxima, highest)
            return few[draw([exp((x - highest) / self.temperature) for x in kept], random)]
        ids, kept64 = self._unranked(logits, highest)
        return int(ids[draw(np.exp((kept64 - highest) / self.temperature), random)])

    def _banning(self) -> str:
        """What may have banned tokens."""
        given = {
            "logit_bias": self.params.logit_bias,
            "processors": self.params.processors,
            "constraint": self.constraint is not None,
        }
        return " with ".join(name for name, value in given.items() if value)

    def _bias(self, logits: Row, history: Sequence[int], maxima: Row) -> tuple[Row, Row]:
        """Logits and maxima with bias, processors, penalties and constraint; the very same arrays
        when there are none.
        """
        p = self.params
        allowed = self.constraint.allowed() if self.constraint is not None else None
        recent: Sequence[int] = ()
        if self.penalizes:
            recent = history if p.repeat_last_n < 0 else history[-p.repeat_last_n :]
        if not (len(self.biases) or recent or p.processors or allowed is not None):
            return logits, maxima
        logits, maxima = logits.copy(), maxima.copy()
        logits[self.biased_ids] += self.biases
        for processor in p.processors:
            logits = processed(processor, history, logits)
        counts = Counter(recent)
        ids = np.array(list(counts), dtype=np.intp)
        times = np.array(list(counts.values()), dtype=np.float32)
        seen = logits[ids]
        seen = np.where(seen > 0, seen / np.float32(p.repeat_penalty), seen * p.repeat_penalty)
        logits[ids] = seen - times * p.frequency_penalty - p.presence_penalty
        if allowed is not None:
            logits = only(logits, allowed_ids(allowed, len(logits)))
        if p.processors or allowed is not None:
            return logits, strip_maxima(logits)
        changed = np.concatenate((self.biased_ids, ids)) // STRIP
        inside = np.minimum(changed[:, None] * STRIP + WITHIN, len(logits) - 1)
        maxima[changed] = logits[inside].max(axis=1)
        return logits, maxima

    def _ranked(self, logits: Row, maxima: Row, highest: float) -> tuple[list[int], list[float]]:
        """The ids among the first top-k that pass the other filters too, and their logits, the most
        likely first.

        They are few: plain numbers are faster here than arrays.
        """
        p = self.params
        ids, kept = largest(logits, maxima, p.top_k)
        weights = [exp(x - highest) for x in kept]
        n = len(weights)
        if p.top_p < 1:
            sums = list(accumulate(weights))
            n = 1 + bisect_left(sums, p.top_p * sums[-1])
        if p.min_p > 0:
            n = min(n, bisect_right(weights, -p.min_p, key=neg))
        return ids[:n], kept[:n]

    def _unranked(self, logits: Row, highest: float) -> tuple[Ids, Weights]:
        """The ids [n] that pass the filters, and their logits [n].

        They stand from the most likely one down, but in order of id when top-p does not ask for
        their ranks. The cheap filter is applied first: what top-p and min-p leave are both the
        first so many by rank, so their order does not matter as long as the total that top-p refers
        to is taken before.
        """
        p, ids, kept = self.params, np.arange(len(logits)), logits.astype(np.float64)
        weights = np.exp(kept - highest)
        enough = p.top_p * float(weights.sum())
        if p.min_p > 0:
            likely = weights >= p.min_p
            ids, kept, weights = ids[likely], kept[likely], weights[likely]
        if p.top_p < 1:
            ranks = likeliest(kept, weights, enough)
            ranks = ranks[: 1 + int(weights[ranks].cumsum().searchsorted(enough))]
            ids, kept = ids[ranks], kept[ranks]
        return ids, kept


def only(logits: Row, ids: Ids) -> Row:
    """A row in which all but these tokens are banned."""
    row = np.full_like(logits, -math.inf)
    row[ids] = logits[ids]
    return row


def processed(processor: Processor, history: Sequence[int], logits: Row) -> Row:
    """What a caller's own function makes of a row that it may change. Raises OptionError, naming
    it, whatever it does wrong: it runs among other people's requests.
    """
    name = getattr(processor, "__name__", type(processor).__name__)
    try:
        given = processor(tuple(history), logits)
        row = logits if given is None else np.array(given, np.float32)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise OptionError(f"processors: {name} failed: {reason}") from error
    if row.shape != logits.shape:
        raise OptionError(f"processors: {name} gave logits {row.shape}, not {logits.shape}")
    if not row.max() < math.inf:  # NaN is not either
        raise OptionError(f"processors: {name} gave NaN or inf as a logit (-inf bans a token)")
    return row


def likeliest(logits: Weights, weights: Weights, total: float) -> Ids:
    """The indices of the largest logits, from the largest down, whose weights reach the total."""
    n = len(logits)
    if n > ENOUGH:
        ranks = (logits >= np.partition(logits, n - ENOUGH)[n - ENOUGH]).nonzero()[0]
        if weights[ranks].sum() >= total:
            return ranks[(-logits[ranks]).argsort(kind="stable")]
    return (-logits).argsort(kind="stable")


def draw(weights: Weights | list[float], random: int) -> int:
    """The index that 64 random bits choose, each in proportion to its weight."""
    sums = list(accumulate(weights)) if isinstance(weights, list) else weights.cumsum()
    total = float(sums[-1])
    point = (random >> 11) * 2.0**-53 * total  # from 0 up to, but without, the total
    last = bisect_left(sums, total)  # where rounding must not lead past
    return min(bisect_right(sums, point), last)
