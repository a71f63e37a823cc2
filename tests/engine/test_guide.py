"""Answers that keep to a schema, a regex, a grammar or a choice: always, or an error says why."""

from __future__ import annotations

import json
import re
import threading
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.engine.schemas import Schema, Writer, schemas
from tests.text import tiny

from satchel.base.errors import OptionError
from satchel.engine.constraint import allowed_ones
from satchel.engine.guide import Guide
from satchel.files.checkpoint import open_checkpoint
from satchel.text import Tokenizer, load_tokenizer
from satchel.text.grammar import read_grammar

KIND = jsonschema.Draft202012Validator


@cache
def writer(path: Path | None = None) -> Writer:
    metadata = open_checkpoint(path).metadata if path else tiny.byte_level("gpt-2")
    return Writer(load_tokenizer(metadata))


def guide(**options: Any) -> Guide:
    grammar = read_grammar(options)
    assert grammar
    return writer().guides.guide(grammar)


def tokenizer() -> Tokenizer:
    return writer().tokenizer


def allowed(guide: Guide) -> list[int]:
    return allowed_ones(guide.allowed(), tokenizer().vocab_size).nonzero()[0].tolist()


def follow(text: str, **options: Any) -> Guide | None:
    """A guide after a text, in whatever tokens; None when it can't be said."""
    led = guide(**options)
    rest = text.encode()
    while rest:
        fitting = [t for t in allowed(led) if rest.startswith(tokenizer().piece(t) or b"\0")]
        if led.is_done or not fitting:
            return None
        token = max(fitting, key=lambda t: len(tokenizer().piece(t)))
        led.accept(token)
        written = tokenizer().decode_bytes([token, *led.forced()])
        if not rest.startswith(written):
            return None
        rest = rest[len(written) :]
    return led


def is_whole(led: Guide | None) -> bool:
    """Whether a text may end there."""
    return led is not None and (led.is_done or bool(tokenizer().stop_ids & set(allowed(led))))


def write_valid(schema: Schema, number: int, path: Path | None = None) -> bool:
    text = writer(path).write(seed=number, json_schema=schema)
    if text is not None:
        KIND(schema, format_checker=KIND.FORMAT_CHECKER).validate(json.loads(text))
    return text is not None


def write_all(n: int, path: Path | None = None) -> None:
    ended: list[bool] = []

    @seed(n)
    @settings(
        max_examples=n,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
        database=None,
    )
    @given(schemas())
    def write(schema: Schema) -> None:
        ended.append(write_valid(schema, len(ended), path))

    write()
    assert len(ended) >= n
    assert sum(ended) >= 0.97 * len(ended), "few answers came to an end"


def test_what_is_written_by_a_random_schema_is_valid() -> None:
    write_all(20)


def test_what_is_written_by_500_random_schemas_is_valid(smollm2: Path) -> None:
    write_all(500, smollm2)


@pytest.mark.parametrize(
    "regex", [r"[a-z]{3}-[0-9]+", "a|bc|", r"(?i)yes|no", r"[^a-z]{2}", "é+", r"(a|ab)(c|bcd)*"]
)
def test_what_is_written_by_a_regex_matches_it_whole(regex: str) -> None:
    for number in range(5):
        text = writer().write(number, regex=regex)
        assert text is not None
        assert re.fullmatch(regex, text)


@given(st.lists(st.text(min_size=1, max_size=5).filter(lambda t: t.isprintable()), min_size=1))
@settings(max_examples=30, deadline=None)
def test_a_choice_is_made_among_those_given(choices: list[str]) -> None:
    assert writer().write(choice=choices) in choices
    for text in choices:
        assert is_whole(follow(text, choice=choices))


@pytest.mark.parametrize(
    ("options", "good", "bad"),
    [
        ({"choice": ["yes", "yes please"]}, ["yes", "yes please"], ["", "ye", "yes ", "no"]),
        ({"regex": "^a+$"}, ["a", "aa"], ["", "b", "ab"]),
        ({"grammar": 'start: "a"+ /[0-9]/'}, ["a1", "aa2"], ["", "a", "1", "a12"]),
        # one character at a time, all ways at once: a token never is too long
        ({"grammar": 'root ::= "a"* "ab"'}, ["ab", "aaab"], ["a", "b", "aba"]),
        ({"grammar": 'root ::= ("a" "bc" | "ab" "d")'}, ["abc", "abd"], ["ab", "abcd"]),
        ({"grammar": "root ::= [a-c] | # one\n  'x'".replace("'", '"')}, ["b"], ["d", "bb"]),
        ({"json_schema": True}, ["1", "null", '{"a": [1, {}]}', '""'], ["", "{", "[1,2]", "a"]),
        ({"json_schema": '{"type": "object"}'}, ["{}", '{"a": 1}'], ["1", "[]", '{"a"}']),
        ({"json_schema": {"enum": [1, "a"]}}, ["1", '"a"'], ["2", "a"]),
    ],
)
def test_what_may_be_written_and_what_not(
    options: dict[str, Any], good: list[str], bad: list[str]
) -> None:
    assert [text for text in good if not is_whole(follow(text, **options))] == []
    assert [text for text in bad if is_whole(follow(text, **options))] == []


def test_a_name_can_not_be_spelled_otherwise_to_escape_its_schema() -> None:
    schema = {"type": "object", "properties": {"a/b": {"type": "integer"}}}
    assert is_whole(follow('{"a/b": 1}', json_schema=schema))
    for name in ("a/b", "\\u0061/b", "a\\/b"):
        assert follow(f'{{"{name}": "x"}}', json_schema=schema) is None


def test_only_text_is_allowed_and_an_end_only_where_the_text_is_whole() -> None:
    led = guide(regex="[^q]{2}")
    for _ in range(2):
        special = [t for t in allowed(led) if tokenizer().is_special(t)]
        assert special == []
        assert not led.is_done
        led.accept(tokenizer().encode("a")[0])
    assert led.is_done

    led = guide(regex="a*")
    special = [t for t in allowed(led) if tokenizer().is_special(t)]
    assert set(special) == tokenizer().stop_ids
    led.accept(special[0])
    assert led.is_done


def test_a_grammar_can_not_ask_for_special_tokens() -> None:
    bos = tokenizer().bos
    with pytest.raises(OptionError, match="grammar: this model has no token"):
        guide(grammar=f"start: <[{bos}]>").allowed()


def test_text_that_is_certain_is_taken_at_once_and_only_where_it_is_wanted() -> None:
    schema = {"properties": {"return": {"const": "Lorem ipsum"}}, "required": ["return"]}
    for forces in (True, False):
        grammar = read_grammar({"json_schema": {"type": "object", **schema}})
        assert grammar
        led = writer().guides.guide(grammar, forces=forces)
        led.accept(tokenizer().encode("{")[0])
        taken = tokenizer().decode(led.forced())
        if not forces:
            assert taken == ""
        else:
            assert taken
            assert '"return": "Lorem ipsum"'.startswith(taken)
        assert not led.forced(), "taken twice"


def test_masks_are_found_beside_the_model_and_timed() -> None:
    led = guide(regex="[a-z]{9}")
    names = {thread.name for thread in threading.enumerate()}
    assert any(name.startswith("satchel-guide") for name in names)
    led.allowed()
    assert led.n_masks == 1
    assert led.mask_ms > 0
    led.accept(tokenizer().encode("a")[0])
    led.allowed()
    assert led.n_masks == 2


def test_answers_by_one_grammar_do_not_meet() -> None:
    first, second = guide(choice=["ab", "cd"]), guide(choice=["ab", "cd"])
    first.accept(tokenizer().encode("a")[0])
    assert {tokenizer().piece(t)[:1] for t in allowed(first)} == {b"b"}
    assert {tokenizer().piece(t)[:1] for t in allowed(second)} == {b"a", b"c"}


@pytest.mark.parametrize("field", ["grammar", "choice"])
def test_a_model_without_the_tokens_ends_in_an_error(field: str) -> None:
    metadata = tiny.byte_level("gpt-2")
    letter = metadata["tokenizer.ggml.tokens"].index("Z")
    pieces = [i for i, text in enumerate(metadata["tokenizer.ggml.tokens"]) if "Z" in text]
    metadata["tokenizer.ggml.token_type"] = list(metadata["tokenizer.ggml.token_type"])
    for token in [letter, *pieces]:
        metadata["tokenizer.ggml.token_type"][token] = 3  # none for a text
    options = {"grammar": 'root ::= "aZ"'} if field == "grammar" else {"choice": ["aZ"]}
    with pytest.raises(OptionError, match=f"{field}: this model has no token"):
        Writer(load_tokenizer(metadata)).write(**options)


def test_a_grammar_that_gets_too_hard_is_an_error_and_not_an_end() -> None:
    with pytest.raises(OptionError, match=r"grammar: .*[Tt]oo many items"):
        writer().write(grammar='start: "a" start')


def test_rows_of_logits_may_be_longer_than_the_vocabulary() -> None:
    from satchel.engine.guide import Guides

    n = tokenizer().vocab_size + 100
    grammar = read_grammar({"regex": "(?s).*"})
    assert grammar
    mask = Guides(tokenizer(), n).guide(grammar).allowed()
    ones = allowed_ones(mask, n)
    assert len(mask) == -(-n // 32)
    assert not np.any(ones[tokenizer().vocab_size :])


def test_what_is_not_needed_any_more_is_freed() -> None:
    import gc
    import weakref

    from satchel.engine.guide import Guides

    read = load_tokenizer(tiny.byte_level("gpt-2"))
    grammar = read_grammar({"regex": "a+"})
    assert grammar
    guides = Guides(read, read.vocab_size)
    guides.guide(grammar).allowed()
    guides.close()
    seen = weakref.ref(read)
    del guides, read
    gc.collect()
    assert seen() is None
