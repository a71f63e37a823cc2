"""Fields that ask for an answer: their shapes, and what they mean to the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from satchel.api import LLM, ChatPrompt, Options
from satchel.serve.shapes import (
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    FieldError,
    Shape,
    between,
    choice,
    either,
    listing,
    mapping,
    only,
    record,
)

Prompt: TypeAlias = list[int] | ChatPrompt
MOST = 2**31 - 1
STOP = {**TEXT, "minLength": 1}

# what the sampler takes, under the names that llama.cpp's and OpenAI's servers give it
SAMPLING: dict[str, Shape] = {
    "temperature": between(NUMBER, 0, 1e6),
    "top_k": between(WHOLE, 0, MOST),
    "top_p": between(NUMBER, 0, 1),
    "min_p": between(NUMBER, 0, 1),
    "typical_p": between(NUMBER, 0, 1),
    "top_n_sigma": between(NUMBER, -1, 1e6),
    "xtc_probability": between(NUMBER, 0, 1),
    "xtc_threshold": between(NUMBER, 0, 1),
    "dynatemp_range": between(NUMBER, 0, 1e6),
    "dynatemp_exponent": between(NUMBER, 0, 1e6),
    "mirostat": choice(0, 2),
    "mirostat_tau": between(NUMBER, 0, 1e6),
    "mirostat_eta": between(NUMBER, 0, 1e6),
    "repeat_penalty": between(NUMBER, 1e-6, 1e6),
    "repeat_last_n": between(WHOLE, -1, MOST),
    "presence_penalty": between(NUMBER, -1e6, 1e6),
    "frequency_penalty": between(NUMBER, -1e6, 1e6),
    "dry_multiplier": between(NUMBER, 0, 1e6),
    "dry_base": between(NUMBER, 1, 1e6),
    "dry_allowed_length": between(WHOLE, 0, MOST),
    "dry_penalty_last_n": between(WHOLE, -1, MOST),
    "dry_sequence_breakers": listing(STOP, 64),
    "seed": between(WHOLE, -1, 2**64 - 1),
    "stop": either(STOP, listing(STOP, 16)),
}

# a request's place among others, and the time it has
TERMS: dict[str, Shape] = {
    "priority": between(WHOLE, -100, 100),
    "timeout_s": between(NUMBER, 0.001, 86400),
}

ANSWERING: dict[str, Shape] = {
    "model": TEXT,
    **TERMS,
    **SAMPLING,
    "logit_bias": mapping(between(NUMBER, -1e9, 1e9)),
    "ignore_eos": TRUTH,
    "max_tokens": between(WHOLE, -1, MOST),
    "n": between(WHOLE, 1, 16),
    "stream": TRUTH,
    "stream_options": record({"include_usage": TRUTH, "include_obfuscation": only(False)}),
    "user": TEXT,  # whose request it is: users take turns
    # labels, which by their meaning change no answer
    "metadata": mapping(TEXT),
    "store": only(False),
    "service_tier": only("auto", "default"),
}


def options_of(body: Mapping[str, Any]) -> Options:
    """The engine's options for what a body says; its shape has been checked."""
    options: dict[str, Any] = {name: body[name] for name in (*SAMPLING, *TERMS) if name in body}
    options["owner"] = body.get("user")
    if options.get("seed", 0) < 0:
        del options["seed"]
    if "ignore_eos" in body:
        options["ignore_eos"] = body["ignore_eos"]
    if "logit_bias" in body:
        options["logit_bias"] = _biases(body["logit_bias"])
    most = body.get("max_completion_tokens", body.get("max_tokens", -1))
    if "max_tokens" in body and body["max_tokens"] != most:
        raise FieldError("max_tokens", "max_completion_tokens says otherwise; give one of them")
    options["max_tokens"] = None if most < 0 else most
    return Options(**options)


def _biases(given: Mapping[str, float]) -> dict[int, float]:
    for token in given:
        if not (token.isascii() and token.isdigit() and len(token) < 10):
            raise FieldError("logit_bias", f"{token[:20]!r} is not a token's id")
    return {int(token): bias for token, bias in given.items()}


def spread(prompts: Sequence[Prompt], options: Options, n: int) -> list[tuple[Prompt, Options]]:
    """`n` asks for each prompt; where there is a seed, each gets one of its own."""
    seed = options.get("seed")
    asks: list[tuple[Prompt, Options]] = []
    for prompt in prompts:
        for i in range(n):
            own = options.copy()
            if seed is not None:
                own["seed"] = (seed + i) % 2**64
            asks.append((prompt, own))
    return asks


def text_prompt(llm: LLM, text: str) -> list[int]:
    """The tokens of a text, with BOS and EOS where the model's file says so.

    Raises as LLM.text_prompt.
    """
    return llm.text_prompt(text)
