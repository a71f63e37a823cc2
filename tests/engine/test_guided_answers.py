"""Answers by a grammar through the whole engine: how they end, streamed, batched, repeated."""

from __future__ import annotations

import json
import math
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.engine.fake import FakeModel
from tests.text import tiny

import satchel
from satchel.api import LLM
from satchel.base.errors import OptionError
from satchel.text import load_tokenizer

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "coffee"]}, "maxItems": 3},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
ASKS: list[dict[str, Any]] = [
    {"json_schema": PERSON},
    {"regex": "[a-z]{5,9}!"},
    {"choice": ["yes", "no", "yes, but"]},
    {"grammar": 'root ::= ("a" [0-9] ",")+ "."'},
    {},
]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    tokenizer = load_tokenizer(tiny.byte_level("gpt-2"))
    model = FakeModel(vocab_size=tokenizer.vocab_size, n_pages=32)
    with LLM(model, tokenizer, name="fake") as llm:
        yield llm


def test_an_answer_ends_where_its_grammar_does(llm: LLM) -> None:
    answer = llm.generate("Hi", regex="[a-z]{4}", seed=1)
    assert re.fullmatch("[a-z]{4}", answer.text)
    assert answer.stats.finish_reason == "stop"
    assert not set(answer.tokens) & llm.tokenizer.stop_ids, "no token was needed to end it"
    assert answer.stats.mask_ms > 0
    assert answer.stats.generated_tokens == len(answer.tokens)


def test_an_answer_may_be_cut_off_by_its_length(llm: LLM) -> None:
    for n in range(1, 12):
        answer = llm.generate("Hi", json_schema=PERSON, max_tokens=n, seed=1)
        assert answer.stats.finish_reason == "length"
        assert len(answer.tokens) == answer.stats.generated_tokens == n


def test_stop_strings_end_it_too(llm: LLM) -> None:
    answer = llm.generate("Hi", json_schema=PERSON, stop="age", seed=1)
    assert answer.stats.finish_reason == "stop"
    assert answer.text.endswith('", "')
    assert '"name"' in answer.text


def test_answers_side_by_side_are_those_given_alone(llm: LLM) -> None:
    options = [{**ask, "seed": seed, "max_tokens": 60} for ask in ASKS for seed in range(2)]
    alone = [llm.generate("Hi", **ask) for ask in options]
    streams = [llm.stream("Hi", **ask) for ask in options]
    together = [stream.result() for stream in streams]
    assert [a.tokens for a in together] == [a.tokens for a in alone]
    assert [a.text for a in together] == [a.text for a in alone]
    assert len({a.text for a in alone}) > len(ASKS), "seeds matter"


def test_pieces_make_up_the_answer(llm: LLM) -> None:
    with llm.stream("Hi", json_schema=PERSON, seed=3) as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == stream.text
    assert tuple(token for piece in pieces for token in piece.tokens) == stream.tokens
    assert any(len(piece.tokens) > 1 for piece in pieces), "no token was certain"
    assert llm.detokenize([t for t in stream.tokens if t not in llm.tokenizer.stop_ids]) == (
        stream.text
    )


def test_probabilities_are_told_of_every_token(llm: LLM) -> None:
    with llm.stream("Hi", json_schema=PERSON, seed=3, logprobs=0) as stream:
        for piece in stream:
            assert len(piece.logprobs) == len(piece.tokens) <= 1


def test_a_bias_that_leaves_nothing_is_an_error(llm: LLM) -> None:
    banned = dict.fromkeys(range(llm.vocab_size), -math.inf)
    with pytest.raises(OptionError, match="logit_bias with constraint: it bans every token"):
        llm.generate("Hi", choice=["a"], logit_bias=banned)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"choice": ["a"], "regex": "a"}, "choice is given too|regex is given too"),
        ({"regex": "a", "ignore_eos": True}, "ignore_eos: .* with regex"),
        ({"regex": "(?=a)b"}, "regex: look-around"),
        ({"regex": "a" * 10000}, "regex: it is longer than"),
        ({"regex": 3}, "regex: '3' is not a text"),
        ({"regex": "\ud800"}, "regex: .* surrogate"),
        ({"choice": []}, "choice: the list is empty"),
        ({"choice": "ab"}, "choice: 'ab' is not a list"),
        ({"choice": ["a", ""]}, "choice: '' is not a text"),
        ({"grammar": "start: b"}, "grammar: line 1, column 8: unknown name"),
        ({"grammar": "root ::= b"}, "grammar: line 1: there is no rule 'b'"),
        ({"grammar": 'start: %json {"not": {}}'}, "grammar: '%json' is not supported"),
        ({"grammar": "start: " + "(" * 10000}, "grammar: line 1, column .*: .*nested"),
        ({"grammar": "\n" * 3000 + 'start: "a"'}, "grammar: it has more than"),
        ({"json_schema": {"type": "string", "format": "frob"}}, "json_schema: 'format' at #"),
        ({"json_schema": {"not": {}}}, "json_schema: 'not' at #"),
    ],
)
def test_what_is_broken_is_refused_at_once(llm: LLM, options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        llm.stream("Hi", **options)
    assert "\n" not in str(caught.value)
    assert not llm.usage().running


def test_one_that_gets_stuck_troubles_no_other(llm: LLM) -> None:
    well = llm.stream("Hi", seed=1, max_tokens=50)
    ill = llm.stream("Hi", grammar='start: "a" start')
    with pytest.raises(OptionError, match="grammar: "):
        ill.result()
    assert well.result().tokens == llm.generate("Hi", seed=1, max_tokens=50).tokens


def test_without_the_package_the_error_says_what_to_install(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(OptionError, match=r"pip install 'satchel\[structured\]'"):
        llm.generate("Hi", regex="a")


def test_the_threads_end_with_the_model() -> None:
    before = set(threading.enumerate())
    tokenizer = load_tokenizer(tiny.byte_level("gpt-2"))
    with LLM(FakeModel(vocab_size=tokenizer.vocab_size), tokenizer) as other:
        other.generate("Hi", regex="[a-z]{3}")
        assert set(threading.enumerate()) - before
    assert not set(threading.enumerate()) - before


def test_a_real_model_fills_a_schema(smollm2: Path) -> None:
    with satchel.load(smollm2, context=512) as llm:
        for options in ({"temperature": 0}, {"seed": 5}):
            answer = llm.chat("Describe a person.", json_schema=PERSON, **options)
            jsonschema.validate(json.loads(answer.text), PERSON)
            assert answer.stats.finish_reason == "stop"
            assert 0 < answer.stats.mask_ms < 500
        for choice in (["Paris", "Rome"], ["Rome", "Paris"]):
            answer = llm.chat("What is the capital of France?", choice=choice, temperature=0)
            assert answer.text == "Paris"


@pytest.mark.parametrize("grammar", ['start: "a" start', "root ::= root2 'a'\nroot2 ::= root"])
def test_a_grammar_without_an_end_is_an_error_and_no_hang(llm: LLM, grammar: str) -> None:
    with pytest.raises(OptionError, match="grammar: "):
        llm.generate("Hi", grammar=grammar.replace("'", '"'))
