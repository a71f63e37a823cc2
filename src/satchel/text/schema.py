"""JSON schemas of which every keyword is kept: what can't be kept is refused, by name and place.

The engine that follows a schema (llguidance) knows the keywords of `KEPT`. It passes over those
that it has never heard of, as JSON Schema says; a misspelt one would then bind nothing. Its numbers
are exact to some 15 digits only: bounds with more are drawn in, so that no number passes them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, cast

from satchel.base.errors import OptionError

MAX_BYTES = 256 * 1024
MAX_REFERENCES = 500  # they may stand in a chain, and each link costs stack
MAX_PATTERN = 8192  # characters; the work may grow with their square
MAX_COUNT = 10**9
LARGEST = Decimal(9 * 10**15)  # numbers beyond are not told apart
DIGITS = 12
MAX_MULTIPLE = 65536  # a remainder of each kind has to be told apart

# control characters, as json.dumps writes them, but for those with an escape of their own
UNWRITABLE = re.compile(r"(?<!\\)(?:\\\\)*(\\u00[01][0-9a-f]|\x7f)")

ONE = {"items", "additionalProperties", "additionalItems"}  # holds a schema (or `items` a list)
LISTS = {"prefixItems", "anyOf", "oneOf", "allOf"}  # a list of schemas
MAPS = {"properties", "patternProperties", "$defs", "definitions"}  # schemas by name
KEPT = ONE | LISTS | MAPS | {
    "type", "const", "enum", "$ref", "$id", "$anchor",
    "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf",
    "minLength", "maxLength", "pattern", "format",
    "minItems", "maxItems", "required", "minProperties", "maxProperties",
}  # fmt: skip
COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
FORMATS = {
    "date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
}  # fmt: skip
DRAFTS = re.compile(
    r"https?://json-schema\.org/(draft-0[467]/schema|draft/(2019-09|2020-12)/schema)#?"
)
TELLS = {  # these tell about a value and bind nothing
    "title", "description", "markdownDescription", "default", "example", "examples", "$comment",
    "deprecated", "readOnly", "writeOnly", "discriminator",
    "contentEncoding", "contentMediaType", "contentSchema",
}  # fmt: skip


def read_schema(given: Any) -> dict[str, Any]:
    """A schema as a mapping, its JSON text, or True for any JSON. Raises OptionError."""
    if isinstance(given, str):
        given = _parsed(given)
    if given is True:
        return {}
    if not isinstance(given, Mapping):
        raise OptionError(
            f"json_schema: {str(given)[:40]!r} is no schema; give a JSON object, or true for any "
            "JSON"
        )
    try:
        text = json.dumps(given, allow_nan=False)
        copy = cast("dict[str, Any]", json.loads(text))  # a caller may change its own later
        if len(text) > MAX_BYTES:
            raise OptionError(f"json_schema: it has more than {MAX_BYTES} bytes")
        _check_draft(copy.pop("$schema", None))
        _check(copy)
    except RecursionError:
        raise OptionError("json_schema: it is nested too deeply") from None
    except (TypeError, ValueError) as error:
        raise OptionError(f"json_schema: it can't be written as JSON: {error}") from None
    return copy


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise OptionError(f"json_schema: it is not JSON: {error}") from None
    except RecursionError:
        raise OptionError("json_schema: it is nested too deeply") from None


def _check_draft(draft: Any) -> None:
    """All drafts are read as one, in which every keyword of any counts: none is passed over."""
    if draft is not None and not DRAFTS.fullmatch(str(draft)):
        raise OptionError(f"json_schema: '$schema' {str(draft)[:80]!r} is not supported")


def _check(schema: dict[str, Any]) -> None:
    n_references = 0
    for place, part in _parts(schema, "#"):
        for keyword in part:
            if keyword not in KEPT | TELLS and not keyword.startswith("x-"):
                raise OptionError(
                    f"json_schema: {keyword!r} at {place} is not supported; leave it out"
                )
        n_references += "$ref" in part
        _check_counts(part, place)
        _check_beside(part, place)
        _check_values(part, place)
        _check_patterns(part, place)
        _draw_in(part, place)
    if n_references > MAX_REFERENCES:
        raise OptionError(f"json_schema: there are more than {MAX_REFERENCES} of '$ref'")


def _check_counts(part: dict[str, Any], place: str) -> None:
    least = part.get("minProperties", 0)
    required = part.get("required")
    certain = len(set(map(str, cast("list[Any]", required)))) if isinstance(required, list) else 0
    if isinstance(least, int) and least > max(1, certain):
        # names may come twice, and then are one property
        raise OptionError(
            f"json_schema: 'minProperties' of {least} at {place} is not supported; list the names "
            "in 'required'"
        )
    for keyword in COUNTS:
        if isinstance(count := part.get(keyword), int) and count > MAX_COUNT:
            raise OptionError(f"json_schema: {keyword!r} at {place} is above {MAX_COUNT}")
    multiple = part.get("multipleOf", 1)
    if isinstance(multiple, int | float) and not (
        0 < multiple <= MAX_MULTIPLE and _is_short(Decimal(str(multiple)))
    ):
        raise OptionError(
            f"json_schema: 'multipleOf' at {place} is {str(multiple)[:40]}, not above 0 and at "
            f"most {MAX_MULTIPLE}, with few digits"
        )


def _is_short(number: Decimal) -> bool:
    return len(number.as_tuple().digits) <= DIGITS and abs(number.adjusted()) < DIGITS


def _draw_in(part: dict[str, Any], place: str) -> None:
    """Makes the bounds of a part ones that are kept to the last digit, none wider than before."""
    is_whole = part.get("type") == "integer"
    for inside, outside, up in (
        ("minimum", "exclusiveMinimum", True),
        ("maximum", "exclusiveMaximum", False),
    ):
        if part.get(outside) is True:  # as draft 4 has it
            part[outside] = part.pop(inside)
        elif part.get(outside) is False:
            del part[outside]
        for keyword in (inside, outside):
            given = part.get(keyword)
            if isinstance(given, int | float) and not isinstance(given, bool):
                bound = _inner(Decimal(str(given)), up)
                if abs(bound) > LARGEST:
                    raise OptionError(f"json_schema: {keyword!r} at {place} is too large")
                part[keyword] = int(bound) if bound == int(bound) else float(bound)
        bound = part.get(outside)
        if not is_whole and isinstance(bound, int) and (up or bound <= 0):
            # llguidance allows 3 itself between 3 and 3.5, -3 between -3.5 and -3, -0 below 0
            closed = float(_inner(Decimal(bound), up, strictly=True))
            part[inside] = (max if up else min)(closed, part.get(inside, closed))
            del part[outside]


def _inner(bound: Decimal, up: bool, *, strictly: bool = False) -> Decimal:
    """The bound itself, or the next number with few digits on its inner side."""
    bound = max(bound, -LARGEST) if up else min(bound, LARGEST)
    step = Decimal(1).scaleb(max(bound.adjusted() - DIGITS + 1, -DIGITS) if bound else -9)
    inner = bound
    if abs(bound) <= LARGEST and bound % step:
        inner = bound.quantize(step, ROUND_CEILING if up else ROUND_FLOOR)
    if strictly and inner == bound:
        return inner + step if up else inner - step
    return inner


def _check_beside(part: dict[str, Any], place: str) -> None:
    """What means something only beside, or not beside, something else."""
    is_list = isinstance(part.get("items"), list)
    wrong = {
        "format": "format" in part and str(part["format"]) not in FORMATS,
        "prefixItems": is_list and "prefixItems" in part,
        "additionalItems": not is_list and "additionalItems" in part,
        "exclusiveMinimum": part.get("exclusiveMinimum") is True and "minimum" not in part,
        "exclusiveMaximum": part.get("exclusiveMaximum") is True and "maximum" not in part,
    }
    for keyword, is_wrong in wrong.items():
        if is_wrong:
            value = json.dumps(part[keyword])[:80]
            raise OptionError(f"json_schema: {keyword!r} at {place} can't be {value} here")


def _check_patterns(part: dict[str, Any], place: str) -> None:
    named = part.get("patternProperties")
    names = list(cast("dict[str, Any]", named)) if isinstance(named, dict) else []
    for pattern in (part.get("pattern", ""), *names):
        if len(str(pattern)) > MAX_PATTERN:
            raise OptionError(
                f"json_schema: a pattern at {place} is longer than {MAX_PATTERN} characters"
            )


def _numbers(value: Any) -> Iterator[int | float]:
    if isinstance(value, dict):
        value = list(cast("dict[str, Any]", value).values())
    if isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from _numbers(one)
    elif isinstance(value, int | float):
        yield value


def _check_values(part: dict[str, Any], place: str) -> None:
    for keyword in ("const", "enum"):
        for number in _numbers(part.get(keyword)):
            if abs(number) > LARGEST:
                raise OptionError(f"json_schema: a number in {keyword!r} at {place} is too large")
        found = UNWRITABLE.search(json.dumps(part.get(keyword), ensure_ascii=False))
        if found:
            raise OptionError(
                f"json_schema: {keyword!r} at {place} has the character {found[1]}, which is not "
                "supported"
            )


def _parts(schema: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """A schema and all that are inside it, each with its place as a JSON pointer (RFC 6901)."""
    if not isinstance(schema, dict):
        return  # True and False hold nothing; what is no schema is refused later
    part = cast("dict[str, Any]", schema)
    yield place, part
    for keyword, value in part.items():
        inside: Any = []
        if keyword in MAPS and isinstance(value, dict):
            inside = cast("dict[str, Any]", value).items()
        elif keyword in LISTS | ONE and isinstance(value, list):
            inside = enumerate(cast("list[Any]", value))
        elif keyword in ONE:
            yield from _parts(value, f"{place}/{keyword}")
        for name, one in inside:
            key = str(name).replace("~", "~0").replace("/", "~1")
            yield from _parts(one, f"{place}/{keyword}/{key}")
