"""How an answer is sampled: names and defaults are llama.cpp's, and each value is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np

from satchel.base.errors import OptionError

if TYPE_CHECKING:
    from satchel.engine.rows import Row

    Processor: TypeAlias = Callable[[tuple[int, ...], Row], Row | None]

MAX_LOGPROBS = 1000
BREAKERS = ("\n", ":", '"', "*")


class Range(NamedTuple):
    """The numbers that a field may have."""

    least: float
    most: float = math.inf
    whole: bool = False
    without_least: bool = False

    def has(self, value: Any) -> bool:
        fits = is_whole(value) if self.whole else is_number(value) and math.isfinite(value)
        if self.without_least and value == self.least:
            return False
        return fits and self.least <= value <= self.most

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if not math.isinf(self.most):
            return f"{kind} from {self.least} to {self.most}"
        if math.isinf(self.least):
            return kind
        return (
            f"{kind} above {self.least}"
            if self.without_least
            else f"{kind} of {self.least} or more"
        )


RANGES = {
    "temperature": Range(-math.inf),
    "dynatemp_range": Range(0),
    "dynatemp_exponent": Range(0),
    "top_k": Range(0, whole=True),
    "top_p": Range(0, 1),
    "min_p": Range(0, 1),
    "typical_p": Range(0, 1),
    "top_n_sigma": Range(-math.inf),
    "xtc_probability": Range(0, 1),
    "xtc_threshold": Range(0, 1),
    "mirostat_tau": Range(0),
    "mirostat_eta": Range(0),
    "repeat_penalty": Range(0, without_least=True),
    "repeat_last_n": Range(-1, whole=True),
    "presence_penalty": Range(-math.inf),
    "frequency_penalty": Range(-math.inf),
    "dry_multiplier": Range(0),
    "dry_base": Range(1),
    "dry_allowed_length": Range(0, whole=True),
    "dry_penalty_last_n": Range(-1, whole=True),
}
MAY_BE_NONE = {
    "seed": Range(0, 2**64 - 1, whole=True),
    "logprobs": Range(0, MAX_LOGPROBS, whole=True),
}
OFF = {"top_k": 0, "top_p": 1, "min_p": 0}  # the filters that are on by default


@dataclass(frozen=True)
class SamplingParams:
    """How the next token is chosen. Raises OptionError, naming the field, for a bad value."""

    temperature: float = 0.8  # 0 or less: greedy, the likeliest that is left each time
    dynatemp_range: float = 0.0  # it varies so much up and down, by how sure the model is; 0: not
    dynatemp_exponent: float = 1.0  # how it follows the entropy
    top_k: int = 40  # only the k most likely tokens; 0: all
    top_p: float = 0.95  # only the most likely tokens that reach this probability together; 1: all
    min_p: float = 0.05  # only tokens at least this likely, compared to the likeliest; 0: all
    typical_p: float = 1.0  # only the most typical tokens that reach it together; 1: all
    top_n_sigma: float = -1.0  # only logits within n deviations of the highest; 0 or less: all
    xtc_probability: float = 0.0  # how often the likeliest tokens are left out; 0: never
    xtc_threshold: float = 0.1  # all that are at least this likely, but for the last of them
    mirostat: int = 0  # 2: Mirostat 2.0 takes the place of all filters; 0: off
    mirostat_tau: float = 5.0  # the surprise that it aims at, in bits
    mirostat_eta: float = 0.1  # how fast it learns
    repeat_penalty: float = 1.0  # logits of recent tokens are divided (if < 0: multiplied) by it
    repeat_last_n: int = 64  # how many tokens, prompt included, are recent; 0: none; -1: all
    presence_penalty: float = 0.0  # taken from the logits of recent tokens
    frequency_penalty: float = 0.0  # taken from them as often as they occurred
    dry_multiplier: float = 0.0  # the penalty of a token that goes on with a repetition; 0: off
    dry_base: float = 1.75  # times this for each token that the repetition is longer
    dry_allowed_length: int = 2  # than this
    dry_penalty_last_n: int = 64  # how many tokens are searched for repetitions; 0: none; -1: all
    dry_sequence_breakers: Sequence[str] = BREAKERS  # no repetition reaches across these texts
    logit_bias: Mapping[int, float] = field(default_factory=dict[int, float])  # -inf bans a token
    seed: int | None = None  # same seed, same answer; None: another one each time
    # each is called with the tokens so far and the logits [vocab], and changes or returns these
    processors: Sequence[Processor] = ()
    logprobs: int | None = None  # tell how likely each token was, and so many likeliest ones

    def __post_init__(self) -> None:
        for name, range_ in (RANGES | MAY_BE_NONE).items():
            value = getattr(self, name)
            if not range_.has(value) and not (value is None and name in MAY_BE_NONE):
                raise OptionError(f"{name}: {value!r} is not {range_}")
        for token, bias in self.logit_bias.items():
            if not is_whole(token) or not is_number(bias) or not bias < math.inf:
                raise OptionError(
                    f"logit_bias: {token!r}: {bias!r} is not a token id and a number (-inf bans)"
                )
        for processor in self.processors:
            if not callable(processor):
                raise OptionError(f"processors: {processor!r} can't be called")
        self._check_breakers(self.dry_sequence_breakers)
        self._check_mirostat()

    def _check_breakers(self, breakers: Any) -> None:
        if isinstance(breakers, str) or not isinstance(breakers, Sequence):
            raise OptionError(f"dry_sequence_breakers: {breakers!r} is not a list of texts")
        for one in cast("Sequence[Any]", breakers):
            if not isinstance(one, str) or not one:
                raise OptionError(
                    f"dry_sequence_breakers: {one!r} is not a text of one character or more"
                )

    def _check_mirostat(self) -> None:
        if not is_whole(self.mirostat) or self.mirostat not in (0, 2):
            raise OptionError(
                f"mirostat: {self.mirostat!r} is neither 0 (off) nor 2 (Mirostat 2.0)"
            )
        if not self.mirostat:
            return
        given = [name for name in ("dynatemp_range", "xtc_probability") if getattr(self, name)]
        given += ["typical_p"] if self.typical_p < 1 else []
        given += ["top_n_sigma"] if self.top_n_sigma > 0 else []
        usual = {one.name: one.default for one in fields(self)}
        given += [
            name for name, off in OFF.items() if getattr(self, name) not in (off, usual[name])
        ]
        if given:
            raise OptionError(f"{given[0]}: mirostat takes its place; give one of them")


def is_whole(value: Any) -> bool:
    """Whether a value is an integer, and not a truth value."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether a value is a number, and neither a truth value nor NaN."""
    return (is_whole(value) or isinstance(value, float | np.floating)) and value == value
