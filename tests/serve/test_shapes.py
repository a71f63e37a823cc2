"""Shapes say the same as any other reader of JSON Schema says, and name what is wrong."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import OptionError, UnsupportedError
from satchel.serve.app import ENDPOINTS
from satchel.serve.shapes import (
    ANYTHING,
    NUMBER,
    TEXT,
    WHOLE,
    Shape,
    between,
    check,
    choice,
    either,
    listing,
    mapping,
    only,
    record,
    without_nulls,
)

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.just(2.5)
    | st.sampled_from(["", "a", "b", "ab"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
SHAPES = st.recursive(
    st.sampled_from([
        TEXT, NUMBER, WHOLE, ANYTHING, between(WHOLE, 0, 2), {"type": "boolean"}, only("a", True),
        {**TEXT, "minLength": 1, "maxLength": 1},
    ]),
    lambda inner: st.builds(lambda s: listing(s, 2, 1), inner)
    | st.builds(mapping, inner)
    | st.builds(lambda s, t: record({"a": s, "b": t}, "a"), inner, inner)
    | st.builds(either, inner, inner),
    max_leaves=4,
)  # fmt: skip


@given(JSON, SHAPES)
def test_the_check_is_json_schemas(value: Any, shape: Shape) -> None:
    try:
        check(value, shape)
        fits = True
    except (OptionError, UnsupportedError):
        fits = False
    assert fits == jsonschema.Draft202012Validator(shape).is_valid(value)


# where anything may be, null is a value
@given(JSON, SHAPES.filter(lambda shape: str(ANYTHING) not in str(shape)))
def test_nulls_in_fields_are_left_out(value: Any, shape: Shape) -> None:
    def has_null(found: Any) -> bool:
        if isinstance(found, dict):
            return any(v is None or has_null(v) for v in found.values())
        return isinstance(found, list) and any(map(has_null, found))

    found = without_nulls(value, shape)
    try:
        check(found, shape)
    except (OptionError, UnsupportedError):
        return
    assert not has_null(found)


def test_nulls_stay_where_anything_may_be() -> None:
    shape = record({"a": either(TEXT, listing(record({"b": mapping(ANYTHING)}), 2)), "c": TEXT})
    schema = {"enum": [None], "const": None, "of": [{"x": None}]}
    found = without_nulls({"a": [{"b": schema, "d": None}], "c": None, "e": None}, shape)
    assert found == {"a": [{"b": schema}]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": "x"}, "a: a text is not a whole number"),
        ({"a": 9}, "a: 9 is not from 0 to 5"),
        ({}, "a: it is missing"),
        ({"a": 1, "z": 1}, "z: there is no such field"),
        ({"a": 1, "b": [{"x": 1}, {"x": None}]}, "b[1].x: null is not a whole number"),
        ([], "body: a list is not an object"),
        ({"a": 1, "c": "often"}, 'c: it is not "never" or "always"'),
        ({"a": 1, "c": {"x": 1}}, "c.x: there is no such field"),
        ({"a": 1, "d": ""}, "d: 0 characters are not 1 or more"),
        ({"a": 1, "e": -1}, "e: -1 is not 0 or more"),
    ],
)
def test_messages_name_the_field(value: Any, says: str) -> None:
    shape = record(
        {
            "a": between(WHOLE, 0, 5),
            "b": listing(record({"x": WHOLE}), 3),
            "c": either(choice("never", "always"), record({"y": TEXT})),
            "d": {**TEXT, "minLength": 1},
            "e": {**WHOLE, "minimum": 0},
        },
        "a",
    )
    with pytest.raises((OptionError, UnsupportedError)) as failed:
        check(value, shape)
    assert str(failed.value) == says


def test_all_shapes_are_sound_schemas() -> None:
    for endpoint in ENDPOINTS:
        if endpoint.shape:
            jsonschema.Draft202012Validator.check_schema(endpoint.shape)
        assert endpoint.summary.startswith(endpoint.method)
