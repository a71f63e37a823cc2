"""Random JSON schemas that something satisfies, and a model of chance that writes by them."""

from __future__ import annotations

import string
from typing import Any, TypeAlias

import numpy as np
from hypothesis import strategies as st

from satchel.engine.guide import Guides
from satchel.engine.sampler import Sampler, SamplingParams
from satchel.text import Tokenizer
from satchel.text.grammar import read_grammar

Schema: TypeAlias = dict[str, Any]

NAMES = st.one_of(
    st.sampled_from(["a", "b", "name", "first name", "a/b", 'q"', "é", "\n", "~", "$ref", "not"]),
    st.text(string.ascii_letters, min_size=1, max_size=6),
)
PATTERNS = [
    "^[a-z]{2,5}$", "[0-9]", "^x", "end$", "^(yes|no)$", r"^\d{3}-\d{4}$", r"^\w+@\w+\.com$",
    '^["\\\\]{1,2}$', "^[^a-z]{1,3}$", "^é?[à-ü]+$", r"^\s?a\.b$", "^(a|b)*c$", "^.{2}$",
]  # fmt: skip
FORMATS = ["uuid", "ipv4", "ipv6", "email", "time", "duration"]
ABOUT = st.fixed_dictionaries(
    {}, optional={"title": st.just("not: a title"), "description": st.text(max_size=5)}
)


def values() -> st.SearchStrategy[Any]:
    """Any JSON, small, in characters that SmolLM2 has all the bytes of."""
    letters = st.characters(exclude_categories=["Cs", "Cc"], max_codepoint=0xFFFF)
    texts = st.text(letters, max_size=6)
    numbers = st.integers(-(10**6), 10**6) | st.floats(-1e3, 1e3).map(lambda x: round(x, 3))
    scalars = st.none() | st.booleans() | numbers | texts
    return st.recursive(
        scalars,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=4,
    )


@st.composite
def integers(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "integer"}
    low = draw(st.integers(-1000, 1000))
    high = low + draw(st.integers(2, 2000))
    schema |= draw(st.sampled_from([{}, {"minimum": low}, {"exclusiveMinimum": low}]))
    schema |= draw(st.sampled_from([{}, {"maximum": high}, {"exclusiveMaximum": high}]))
    if draw(st.integers(0, 3)) == 0 and high - low > 40:
        schema["multipleOf"] = draw(st.integers(1, 20))
    return schema


@st.composite
def numbers(draw: st.DrawFn) -> Schema:
    schema: Schema = {"type": "number"}
    low = round(draw(st.floats(-1e4, 1e4)), draw(st.integers(0, 3)))
    high = low + round(draw(st.floats(0.5, 100)), 2)
    schema |= draw(st.sampled_from([{}, {"minimum": low}, {"exclusiveMinimum": low}]))
    schema |= draw(st.sampled_from([{}, {"maximum": high}, {"exclusiveMaximum": high}]))
    return schema


@st.composite
def texts(draw: st.DrawFn) -> Schema:
    kind = draw(st.sampled_from(["length", "pattern", "format"]))
    if kind == "pattern":
        return {"type": "string", "pattern": draw(st.sampled_from(PATTERNS))}
    if kind == "format":
        return {"type": "string", "format": draw(st.sampled_from(FORMATS))}
    least = draw(st.integers(0, 5))
    most = draw(st.sampled_from([{}, {"maxLength": least + draw(st.integers(0, 9))}]))
    return {"type": "string", **draw(st.sampled_from([{}, {"minLength": least}])), **most}


@st.composite
def arrays(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    least = draw(st.integers(0, 2))
    schema: Schema = {"type": "array", "maxItems": least + draw(st.integers(0, 3))}
    if least:
        schema["minItems"] = least
    if draw(st.booleans()):
        schema["prefixItems"] = draw(st.lists(inner, min_size=1, max_size=3))
        schema["items"] = draw(st.just(True) | inner)
    else:
        schema["items"] = draw(inner)
    return schema


@st.composite
def objects(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    properties = draw(st.dictionaries(NAMES, inner, max_size=4))
    schema: Schema = {"type": "object", "properties": properties}
    required = [name for name in properties if draw(st.booleans())]
    others = draw(st.sampled_from(["none", "none", "any", "some", "unsaid"]))
    if others == "none":
        schema["additionalProperties"] = False
    elif others != "unsaid":
        schema["additionalProperties"] = True if others == "any" else draw(inner)
        if draw(st.integers(0, 3)) == 0:
            required.append(draw(NAMES))
    if draw(st.integers(0, 5)) == 0:
        schema["patternProperties"] = {"^x-": draw(inner)}
    if draw(st.integers(0, 3)) == 0 and required == list(properties):
        schema["maxProperties"] = len(required) + draw(st.integers(0, 2))
        schema["minProperties"] = len(required)
    return schema | {"required": list(dict.fromkeys(required))}


@st.composite
def unions(draw: st.DrawFn, inner: st.SearchStrategy[Schema]) -> Schema:
    kind = draw(st.sampled_from(["anyOf", "nullable", "types", "tagged", "both"]))
    if kind == "types":
        return {"type": draw(st.sampled_from([["string", "null"], ["integer", "boolean"]]))}
    if kind == "nullable":
        return {"anyOf": [draw(inner), {"type": "null"}]}
    if kind == "tagged":
        tags = draw(st.lists(NAMES, min_size=1, max_size=3, unique=True))
        return {
            "oneOf": [
                {
                    "type": "object",
                    "properties": {"kind": {"const": tag}, "value": draw(inner)},
                    "required": ["kind", "value"],
                }
                for tag in tags
            ]
        }
    if kind == "both":
        return {
            "allOf": [
                {"type": "object", "properties": {"left": draw(inner)}, "required": ["left"]},
                {"properties": {"right": draw(inner)}, "required": ["right"]},
            ]
        }
    return {"anyOf": draw(st.lists(inner, min_size=1, max_size=3))}


VALUES = values()
LEAVES = st.one_of(
    st.sampled_from([{"type": "null"}, {"type": "boolean"}, {"type": "string"}]),
    st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=4)}),
    integers(),
    numbers(),
    texts(),
)
PARTS = st.recursive(  # schemas without references
    LEAVES,
    lambda inner: st.one_of(arrays(inner), objects(inner), unions(inner)),
    max_leaves=6,
)


@st.composite
def schemas(draw: st.DrawFn) -> Schema:
    """A schema, perhaps with definitions, one of them recursive."""
    schema = {**draw(PARTS), **draw(ABOUT)}
    if draw(st.booleans()):
        return schema
    tree: Schema = {
        "type": "object",
        "properties": {
            "value": draw(PARTS),
            "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]},
        },
        "required": ["value", "next"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/part"}, "b": {"$ref": "#/$defs/tree"}, "c": schema},
        "required": ["a", "b"],
        "additionalProperties": False,
        "$defs": {"part": draw(PARTS), "tree": tree},
    }


class Writer:
    """Writes at random, more and more eager to come to an end."""

    N_ROWS = 16

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.guides = Guides(tokenizer, tokenizer.vocab_size)
        rows = np.random.default_rng(0).normal(0, 2, (self.N_ROWS, tokenizer.vocab_size))
        self.rows = rows.astype(np.float32)
        self.ends = np.array(
            [
                token in tokenizer.stop_ids or not tokenizer.piece(token).strip(b'"}]@.comnul')
                for token in range(tokenizer.vocab_size)
            ]
        ).astype(np.float32)

    def write(self, seed: int = 0, most: int = 600, **options: Any) -> str | None:
        """A text that keeps to the options; None when it came to no end."""
        grammar = read_grammar(options)
        assert grammar
        guide = self.guides.guide(grammar)
        params = SamplingParams(temperature=1, top_k=0, seed=seed)
        sampler = Sampler(params, self.tokenizer.vocab_size, guide)
        tokens: list[int] = []
        while len(tokens) < most:
            row = self.rows[(seed + len(tokens)) % self.N_ROWS]
            tokens.append(sampler.choose(row + self.ends * (4 + len(tokens) / 25), tokens))
            tokens += sampler.forced()
            if sampler.is_done or tokens[-1] in self.tokenizer.stop_ids:
                stops = self.tokenizer.stop_ids
                return self.tokenizer.decode([token for token in tokens if token not in stops])
        return None
