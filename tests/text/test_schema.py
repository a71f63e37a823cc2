"""JSON schemas: each keyword is kept, or refused by its name and place."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.engine.schemas import Schema, schemas
from tests.text.test_gbnf import vocabulary

from satchel.base.errors import OptionError
from satchel.text.grammar import Grammar, explain, matcher, read_grammar
from satchel.text.schema import MAX_REFERENCES, read_schema

REFUSED: list[tuple[str, Any]] = [
    ("not", {}),
    ("if", {"type": "string"}),
    ("then", {}),
    ("else", {}),
    ("uniqueItems", True),
    ("contains", {"type": "string"}),
    ("minContains", 1),
    ("maxContains", 1),
    ("propertyNames", {"pattern": "^a"}),
    ("dependentRequired", {"a": ["b"]}),
    ("dependentSchemas", {"a": {}}),
    ("dependencies", {"a": ["b"]}),
    ("unevaluatedProperties", False),
    ("unevaluatedItems", False),
    ("$dynamicRef", "#a"),
    ("$recursiveRef", "#"),
    ("nullable", True),
    ("maxlength", 3),
    ("minProperties", 2),
    ("multipleOf", 0),
    ("multipleOf", -2),
    ("multipleOf", 10**9),
    ("multipleOf", 0.1 + 0.2),
    ("minLength", 10**12),
    ("minimum", 10**20),
    ("exclusiveMaximum", -1e300),
    ("enum", ["a", "b\x01"]),
    ("const", {"\x7f": 1}),
]
TOO_LARGE: list[Any] = [{"const": -(2**63)}, {"const": 1e300}, {"enum": [1, {"a": [2**64]}]}]
BROKEN: list[tuple[Any, str]] = [
    ({"$ref": "https://example.org/schema"}, "https://example.org/schema"),
    ({"$ref": "#/$defs/none"}, r"\$defs/none"),
    ({"$schema": "https://example.org/draft"}, "'$schema' 'https://example.org/draft'"),
    ({"items": {"$schema": "http://json-schema.org/draft-04/schema#"}}, "'$schema' at #/items"),
    ({"type": "strin"}, "Invalid type: strin"),
    ({"type": 3}, "type must be"),
    ({"enum": 3}, "enum must be"),
    ({"required": "a"}, "'required'"),
    ({"properties": [1]}, "properties must be"),
    ({"type": "string", "format": "frob"}, "'format' at # can't be \"frob\""),
    ({"type": "string", "format": "unknown"}, "'format' at #"),
    ({"type": "string", "format": ["uri"]}, "'format' at #"),
    ({"prefixItems": [{}], "items": [{}]}, "'prefixItems' at #"),
    ({"prefixItems": [{"type": "string"}], "additionalItems": False}, "'additionalItems' at #"),
    ({"type": "number", "exclusiveMinimum": True}, "'exclusiveMinimum' at # can't be true"),
    ({"type": "number", "exclusiveMaximum": True}, "'exclusiveMaximum' at # can't be true"),
    ({"type": "string", "pattern": "(?!a)b"}, "look-around"),
    ({"type": "string", "pattern": "("}, "unclosed group"),
    ({"type": "string", "minLength": -1}, "'minLength'"),
    ({"type": "string", "minLength": 3, "maxLength": 1}, "minLength"),
    ({"minimum": 3, "maximum": 1, "type": "integer"}, "minimum"),
    ({"minItems": 3, "maxItems": 1, "type": "array"}, "minItems"),
    ({"oneOf": [{"type": "string"}, {"maxLength": 3}]}, "oneOf"),
    ({"anyOf": []}, "anyOf"),
    ({"allOf": [{"type": "string"}, {"type": "null"}]}, "Unsatisfiable"),
    ({"type": "string", "x-guidance": {"lenient": True}, "pattern": "("}, "unclosed group"),
]


def refusal(schema: Any) -> str:
    """What is said of a schema in the end, "" for nothing."""
    try:
        grammar = read_grammar({"json_schema": schema})
    except OptionError as error:
        return str(error)
    assert grammar
    is_bad, notes = matcher().validate_grammar_with_warnings(grammar.text)
    assert is_bad or not notes
    return str(explain(Grammar("json_schema", ""), notes[0])) if notes else ""


@pytest.mark.parametrize(("keyword", "value"), REFUSED, ids=lambda v: str(v)[:20])
@pytest.mark.parametrize("place", ["#", "#/properties/a", "#/anyOf/1/items", "#/$defs/x~1y"])
def test_a_keyword_that_can_not_be_kept_is_named_with_its_place(
    keyword: str, value: Any, place: str
) -> None:
    schema: Any = {keyword: value}
    for step in reversed(place.split("/")[1:]):
        if step in ("properties", "$defs", "items"):
            schema = {step: schema}
        elif step == "1":
            schema = [{}, schema]
        else:
            schema = {step.replace("~1", "/"): schema}
    with pytest.raises(OptionError) as caught:
        read_schema(schema)
    assert str(caught.value).startswith(f"json_schema: '{keyword}'")
    assert f" at {place} " in str(caught.value)


@pytest.mark.parametrize("schema", TOO_LARGE)
def test_numbers_that_would_not_be_told_apart_are_refused(schema: Any) -> None:
    with pytest.raises(OptionError, match=r"json_schema: a number in '.*' at # is too large"):
        read_schema(schema)


@pytest.mark.parametrize(("schema", "message"), BROKEN, ids=lambda v: str(v)[:40])
def test_what_is_broken_is_refused_with_what_is_wrong(schema: Any, message: str) -> None:
    said = refusal(schema)
    assert said.startswith("json_schema: ")
    assert message.replace("\\", "") in said
    assert "\n" not in said


@settings(max_examples=30)
@given(schemas())
def test_what_can_be_kept_is_not_refused(schema: Schema) -> None:
    assert refusal(schema) == ""
    assert read_schema(json.dumps(schema)) == read_schema(schema)


BOUNDS = st.one_of(
    st.integers(-5, 5),
    st.integers(-(2**70), 2**70),
    st.floats(-100, 100),
    st.floats(-1e300, 1e300),
    st.sampled_from([-(2**63), 2**63 - 1, 0, -0.0, 5e-324, 1e15, 9e15]),
)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["number", "integer"]),
    st.dictionaries(
        st.sampled_from(["minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"]), BOUNDS
    ),
)
@example("number", {"exclusiveMinimum": -7462.5, "exclusiveMaximum": -7462.0})
@example("number", {"minimum": -5.5, "exclusiveMaximum": -5})
@example("number", {"exclusiveMinimum": 5, "exclusiveMaximum": 5.5})
def test_no_number_passes_its_bounds(kind: str, bounds: dict[str, Any]) -> None:
    schema = {"type": kind, **bounds}
    if refusal(schema):
        return
    near = {Decimal(str(bound)) for bound in bounds.values()}
    for number in near | {int(x) + Decimal(y) for x in near for y in ("-1", "0", ".001", "1")}:
        fits = (
            number >= Decimal(str(bounds.get("minimum", "-Infinity")))
            and number <= Decimal(str(bounds.get("maximum", "Infinity")))
            and number > Decimal(str(bounds.get("exclusiveMinimum", "-Infinity")))
            and number < Decimal(str(bounds.get("exclusiveMaximum", "Infinity")))
        )
        assert fits or not may_be_written(format(number, "f"), schema)


def may_be_written(text: str, schema: Any) -> bool:
    grammar = read_grammar({"json_schema": schema})
    assert grammar
    state = matcher()(vocabulary(), grammar.text, log_level=0)
    raw = list(text.encode())
    return state.try_consume_tokens(raw) == len(raw) and state.is_accepting()


@pytest.mark.parametrize("given", [True, "true", " true\n"])
def test_true_means_any_json(given: Any) -> None:
    assert read_schema(given) == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("{", "it is not JSON"),
        ("[]", "is no schema"),
        ("null", "is no schema"),
        (False, "is no schema"),
        (3, "is no schema"),
        ({"const": float("nan")}, "can't be written as JSON"),
        ({"const": {1, 2}}, "can't be written as JSON"),
        ({"title": "x" * 300_000}, "more than"),
        ({"pattern": "(a|b)*c?" * 2000}, "a pattern at # is longer than"),
        ({"patternProperties": {"(a|b)*c?" * 2000: {}}}, "a pattern at # is longer than"),
        ('{"items":' * 3000 + "{}" + "}" * 3000, "nested too deeply"),
        ({"prefixItems": [{"$ref": "#"}] * (MAX_REFERENCES + 1)}, r"more than 500 of '\$ref'"),
    ],
)
def test_what_is_no_schema_at_all_is_refused(given: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        read_schema(given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("draft", ["draft-04", "draft-07", "draft/2020-12"])
def test_no_draft_makes_a_keyword_count_for_nothing(draft: str) -> None:
    schema = {"$schema": f"http://json-schema.org/{draft}/schema#", "const": 1, "prefixItems": []}
    assert read_schema(schema) == {"const": 1, "prefixItems": []}


def test_names_and_values_are_no_keywords() -> None:
    schema = {
        "type": "object",
        "properties": {"not": {"const": {"if": 1}}, "then": {"enum": ["else"]}},
        "default": {"not": 1},
        "x-anything": {"uniqueItems": 1},
    }
    assert read_schema(schema) == schema
    assert refusal(schema) == ""


def test_a_least_number_of_properties_is_kept_where_their_names_are_known() -> None:
    assert read_schema({"minProperties": 1})
    assert read_schema({"minProperties": 2, "required": ["a", "b"]})
    with pytest.raises(OptionError, match="'minProperties' of 2"):
        read_schema({"minProperties": 2, "required": ["a", "a"]})
