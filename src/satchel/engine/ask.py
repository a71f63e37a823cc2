"""What callers may ask for, checked: how to answer, and what has been said so far."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict, cast

from satchel.base.errors import OptionError
from satchel.engine.params import SamplingParams, is_whole
from satchel.engine.terms import Terms, read_terms
from satchel.text.grammar import Grammar, read_grammar

if TYPE_CHECKING:
    from satchel.engine.params import Processor

Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": ...}, and what templates know


class Options(TypedDict, total=False):
    """How to answer; every one may be left out. Defaults and order of the filters are llama.cpp's.

    `seed` makes an answer repeat; it is the same whatever else the model is doing at the time.
    """

    max_tokens: int | None  # None: until the model ends, or the context is full
    stop: str | Sequence[str]  # the answer ends before the first of these strings
    ignore_eos: bool  # go on where the model would end
    # What the whole answer must be; one of these, or none. An answer that ends by its length, a
    # stop string or a cancellation may be the beginning of it only.
    json_schema: Mapping[str, Any] | str | bool | None  # also as JSON text; True: any JSON
    regex: str | None  # Rust's syntax; no look-around, no references back
    grammar: str | None  # GBNF (with a rule `root ::= `), or llguidance's Lark (`start: `)
    choice: Sequence[str] | None
    temperature: float  # 0.8; 0: always the most likely token
    top_k: int  # 40; 0: off
    top_p: float  # 0.95; 1: off
    min_p: float  # 0.05; 0: off
    repeat_penalty: float  # 1.0: off
    repeat_last_n: int  # 64: how many tokens the penalties look at
    presence_penalty: float  # 0
    frequency_penalty: float  # 0
    dynatemp_range: float  # 0: how far the temperature varies, by how sure the model is
    dynatemp_exponent: float  # 1
    typical_p: float  # 1.0: off
    top_n_sigma: float  # -1: off
    xtc_probability: float  # 0: off
    xtc_threshold: float  # 0.1
    mirostat: int  # 0: off; 2: in the place of all filters
    mirostat_tau: float  # 5
    mirostat_eta: float  # 0.1
    dry_multiplier: float  # 0: off
    dry_base: float  # 1.75
    dry_allowed_length: int  # 2
    dry_penalty_last_n: int  # 64: how many tokens are searched for repetitions
    dry_sequence_breakers: Sequence[str]  # newline, colon, quote, star
    logit_bias: Mapping[int, float]  # token id -> what is added to its logit; -inf bans it
    seed: int | None  # None: another one each time
    priority: int  # 0; of requests that wait for each other the higher goes first
    owner: str | None  # requests of one owner wait for each other, and take turns with others'
    timeout_s: float | None  # the answer ends, "timeout", when it has taken so many seconds
    # each is called with the tokens so far and the logits [vocab], and changes or returns these
    processors: Sequence[Processor]
    # None: none; 0: how likely each token was; n: and the n likeliest. See `TokenLogprob`
    logprobs: int | None


@dataclass(frozen=True)
class Ask:
    """Options with all their values."""

    sampling: SamplingParams
    max_tokens: int | None
    stops: tuple[str, ...]
    ignore_eos: bool
    terms: Terms
    grammar: Grammar | None


def read_options(options: Mapping[str, Any]) -> Ask:
    """Options as given, checked and completed; raises OptionError, naming what is wrong."""
    sampling = {field.name for field in fields(SamplingParams)}
    known = sorted(Options.__annotations__)
    for name in options:
        if name not in known:
            raise OptionError(f"{name}: there is no such option; there are {', '.join(known)}")
    max_tokens = options.get("max_tokens")
    if max_tokens is not None and (not is_whole(max_tokens) or max_tokens < 0):
        raise OptionError(f"max_tokens: {max_tokens!r} is not a whole number of 0 or more")
    ignore_eos = options.get("ignore_eos", False)
    if not isinstance(ignore_eos, bool):
        raise OptionError(f"ignore_eos: {ignore_eos!r} is neither True nor False")
    grammar = read_grammar(options)
    if grammar and ignore_eos:
        raise OptionError(f"ignore_eos: it can't be kept to with {grammar.field}; leave it out")
    return Ask(
        SamplingParams(**{name: value for name, value in options.items() if name in sampling}),
        max_tokens,
        _read_stops(options.get("stop", ())),
        ignore_eos,
        read_terms(options),
        grammar,
    )


def _read_stops(stop: Any) -> tuple[str, ...]:
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, Sequence):
        raise OptionError(f"stop: {stop!r} is neither a text nor a list of texts")
    for one in cast("Sequence[Any]", stops):
        if not isinstance(one, str) or not one:
            raise OptionError(f"stop: {one!r} is not a text of one character or more")
    return tuple(cast("Sequence[str]", stops))


def read_messages(messages: Any) -> list[Message]:
    """Messages as given, checked; a bare text is what the user says. Raises OptionError."""
    if isinstance(messages, str):
        return [{"role": "user", "content": messages}]
    if isinstance(messages, Mapping) or not isinstance(messages, Iterable):
        raise OptionError("messages: not a text, nor a list of messages")
    checked: list[Message] = []
    for number, given in enumerate(cast("Iterable[Any]", messages), 1):
        message = cast("Message", given if isinstance(given, Mapping) else {})
        if not isinstance(message.get("role"), str):
            raise OptionError(
                f'message {number}: not of the form {{"role": "user", "content": "..."}}'
            )
        if "content" not in message and "tool_calls" not in message:
            raise OptionError(f"message {number}: it has no content")
        checked.append(dict(message))
    if not checked:
        raise OptionError("messages: there are none; say something")
    return checked
