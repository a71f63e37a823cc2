"""What a request may say, as JSON Schema, and the check of a value against it.

One table of fields serves twice: bodies are checked by it, and /openapi.json shows it. What a
table does not name is refused, so that nothing asked for is ever silently ignored.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, cast

from satchel.base.errors import OptionError, UnsupportedError

Shape: TypeAlias = Mapping[str, Any]

ANYTHING: Shape = {}
TEXT: Shape = {"type": "string"}
TRUTH: Shape = {"type": "boolean"}
WHOLE: Shape = {"type": "integer"}
NUMBER: Shape = {"type": "number"}
TOKENS: Shape = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0},
    "maxItems": 2**20,
}


def between(kind: Shape, least: float, most: float) -> Shape:
    """Numbers of a kind, from `least` to `most`."""
    return {**kind, "minimum": least, "maximum": most}


def listing(items: Shape, most: int, least: int = 0) -> Shape:
    """Lists of `least` to `most` items."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def mapping(values: Shape) -> Shape:
    """Objects with any names."""
    return {"type": "object", "additionalProperties": values}


def record(fields: Mapping[str, Shape], *required: str) -> Shape:
    """Objects with these fields and no others."""
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(required),
        "additionalProperties": False,
    }


def either(*shapes: Shape) -> Shape:
    """Values of any of these shapes."""
    return {"anyOf": list(shapes)}


def only(*values: Any) -> Shape:
    """A field that we know but do not have: only the values that ask for nothing are taken."""
    return {"enum": list(values), "x-unsupported": True}


def choice(*values: Any) -> Shape:
    """One of these values."""
    return {"enum": list(values)}


class FieldError(OptionError):
    """A field of a request is wrong; `field` is its name."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"{field}: {wrong}")
        self.field = field


class UnsupportedFieldError(UnsupportedError):
    """A field of a request is not honoured; `field` is its name."""

    def __init__(self, field: str, wrong: str) -> None:
        super().__init__(f"{field}: {wrong}")
        self.field = field


def check(value: Any, shape: Shape, name: str = "body") -> None:
    """Raises FieldError or UnsupportedFieldError, naming the field, when a value does not fit."""
    if not shape:
        return
    if "anyOf" in shape:
        _check_any(value, shape["anyOf"], name)
    elif "enum" in shape:
        _check_enum(value, shape, name)
    else:
        kind = str(shape["type"])
        if not _is(value, kind):
            raise FieldError(name, f"{_kind(value)} is not {_ARTICLES[kind]}")
        if kind == "object":
            _check_object(value, shape, name)
        elif kind == "array":
            _check_array(value, shape, name)
        else:
            _check_limits(value, shape, name)


_ARTICLES = {
    "string": "a text",
    "boolean": "true or false",
    "integer": "a whole number",
    "number": "a number",
    "array": "a list",
    "object": "an object",
}


def _is(value: Any, kind: str) -> bool:
    match kind:
        case "boolean":
            return isinstance(value, bool)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "number":
            return isinstance(value, int | float) and not isinstance(value, bool)
        case "string":
            return isinstance(value, str)
        case "array":
            return isinstance(value, list)
        case _:
            return isinstance(value, dict)


def _kind(value: Any) -> str:
    """What a value is, for messages; texts are not repeated, they may be private."""
    if value is None:
        return "null"
    return next(article for kind, article in _ARTICLES.items() if _is(value, kind))


def _check_any(value: Any, shapes: Sequence[Shape], name: str) -> None:
    errors: list[FieldError | UnsupportedFieldError] = []
    for shape in shapes:
        try:
            return check(value, shape, name)
        except (FieldError, UnsupportedFieldError) as error:
            errors.append(error)
    # a shape of the right type knows best what is wrong, one for a record's own kind better still
    pairs = list(zip(errors, shapes, strict=True))
    near = [error for error, shape in pairs if _is_like(value, shape)]
    same = [error for error, shape in pairs if _is_kind(value, shape)]
    raise (same or near or errors)[-1]


def _is_like(value: Any, shape: Shape) -> bool:
    """Whether a value has the type that this shape asks for."""
    if "enum" in shape:
        return any(type(value) is type(one) for one in shape["enum"])
    return _is(value, str(shape.get("type")))


def _is_kind(value: Any, shape: Shape) -> bool:
    """Whether a value's field `type` says that it is of this shape."""
    kinds = shape.get("properties", {}).get("type", {}).get("enum", ())
    return isinstance(value, dict) and cast("dict[str, Any]", value).get("type") in kinds


def _check_enum(value: Any, shape: Shape, name: str) -> None:
    if any(type(value) is type(one) and value == one for one in shape["enum"]):
        return
    allowed = " or ".join(json.dumps(one) for one in shape["enum"])
    if shape.get("x-unsupported"):
        but = f"; only {allowed} is taken" if allowed else "; leave it out"
        raise UnsupportedFieldError(name, f"this is not supported{but}")
    raise FieldError(name, f"it is not {allowed}")


def _check_object(value: dict[str, Any], shape: Shape, name: str) -> None:
    fields = cast("Mapping[str, Shape]", shape.get("properties", {}))
    others = shape.get("additionalProperties", False)
    for key, one in value.items():
        inner = key if name == "body" else f"{name}.{key}"
        if key in fields:
            check(one, fields[key], inner)
        elif others is False:
            raise UnsupportedFieldError(inner[:100], "there is no such field")
        else:
            check(one, others, inner[:100])
    for key in shape.get("required", ()):
        if key not in value:
            raise FieldError(key if name == "body" else f"{name}.{key}", "it is missing")


def _check_array(value: list[Any], shape: Shape, name: str) -> None:
    least, most = shape.get("minItems", 0), shape.get("maxItems", math.inf)
    if not least <= len(value) <= most:
        raise FieldError(name, f"{len(value)} items are not {_range(least, most)}")
    for number, one in enumerate(value):
        check(one, shape["items"], f"{name}[{number}]")


def _check_limits(value: Any, shape: Shape, name: str) -> None:
    if isinstance(value, str):
        least, most = shape.get("minLength", 0), shape.get("maxLength", math.inf)
        if not least <= len(value) <= most:
            raise FieldError(name, f"{len(value)} characters are not {_range(least, most)}")
        return
    least, most = shape.get("minimum", -math.inf), shape.get("maximum", math.inf)
    if not least <= value <= most:
        raise FieldError(name, f"{value} is not {_range(least, most)}")


def _range(least: float, most: float) -> str:
    return f"from {least} to {most}" if math.isfinite(most) else f"{least} or more"


def without_nulls(value: Any, shape: Shape) -> Any:
    """A field that is null says nothing: as clients mean it, it is left out.

    But not inside what may be anything, as a JSON schema: there null is a value.
    """
    shapes = cast("Sequence[Shape]", shape.get("anyOf", [shape]))
    if isinstance(value, dict):
        records = [one for one in shapes if one.get("type") == "object"]
        given = cast("dict[str, Any]", value)
        if not records:
            return given
        inner = {key: _inside(records, key) for key in given}
        return {
            key: without_nulls(one, inner[key])
            for key, one in given.items()
            if one is not None or inner[key] == ANYTHING
        }
    if isinstance(value, list):
        items = either(*(one["items"] for one in shapes if one.get("type") == "array"))
        return [without_nulls(one, items) for one in cast("list[Any]", value)]
    return value


def _inside(records: Sequence[Shape], key: str) -> Shape:
    """What a field may be in any of these."""
    found: list[Shape] = []
    for one in records:
        inner = one.get("properties", {}).get(key, one.get("additionalProperties", False))
        if inner == ANYTHING:
            return ANYTHING
        found += inner.get("anyOf", [inner]) if inner else []
    return either(*found)
