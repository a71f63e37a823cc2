"""Grammars of calls: what they allow, our parser reads, and the tools' schemas hold."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer
from tests.text.test_answer import WAYS as ALL

from satchel.base.errors import OptionError, UnsupportedError
from satchel.text.conventions import THOUGHTS
from satchel.text.grammar import Grammar, read_grammar
from satchel.text.tool_grammar import call_grammar, compose, free_grammar, opener_of

F: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "integer"},
        "b": {"type": "string"},
        "c": {"$ref": "#/$defs/kind"},
    },
    "required": ["b"],
    "$defs": {"kind": {"enum": ["x", "y"]}},
}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "parameters": F}},
    {"type": "function", "function": {"name": "g"}},
]


UNFORCED = ("function-gemma", "gemma-4")  # whose texts stand between special tokens
WAYS = {name: way for name, way in ALL.items() if name not in UNFORCED}


class Bytes:
    """A vocabulary of the 256 bytes and an end."""

    is_tokenizer_wrapper = True
    eos_token_id = 256
    bos_token_id = None
    special_token_ids = [256]  # noqa: RUF012 - llguidance reads it
    tokens = [*(bytes([i]) for i in range(256)), b""]  # noqa: RUF012

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


TABLE = LLTokenizer(Bytes(), n_vocab=257, eos_token=[256])  # type: ignore[arg-type]


def allows(grammar: Grammar, text: str) -> bool:
    """Whether a text is a whole answer."""
    found = LLMatcher(TABLE, grammar.text, log_level=0)
    assert not found.is_error(), found.get_error()
    data = list(text.encode())
    return found.try_consume_tokens(data) == len(data) and found.is_accepting()


def forced(way: str, parallel: bool = True, opened: str = "") -> Grammar:
    return call_grammar(WAYS[way], TOOLS, parallel=parallel, opened=opened)


def written(way: str, *calls: tuple[str, dict[str, Any]]) -> str:
    return WAYS[way].write(list(calls)).removesuffix("<|tool_call_end|>")


@pytest.mark.parametrize("way", WAYS)
def test_calls_keep_to_their_schemas(way: str) -> None:
    grammar = forced(way)
    assert allows(grammar, written(way, ("f", {"a": 1, "b": 'q"\n', "c": "x"})))
    assert allows(grammar, written(way, ("f", {"b": "é"})))
    assert allows(grammar, written(way, ("g", {})))
    for name, arguments in (
        ("f", {}), ("f", {"a": 1}), ("f", {"b": 5}), ("f", {"b": "", "c": "z"}),
        ("f", {"b": "", "d": 1}), ("g", {"a": 1}), ("h", {}),
    ):  # fmt: skip
        assert not allows(grammar, written(way, (name, arguments))), (name, arguments)
    assert not allows(grammar, "I think")


@pytest.mark.parametrize("way", WAYS)
def test_several_calls_where_they_may_be(way: str) -> None:
    two = written(way, ("f", {"b": ""}), ("g", {}))
    assert allows(forced(way), two) == (way != "llama-3")
    assert not allows(forced(way, parallel=False), two)
    assert allows(forced(way, parallel=False), written(way, ("g", {})))


@pytest.mark.parametrize("way", ["hermes", "mistral", "mistral-named", "pythonic-marked"])
def test_an_opener_may_stand_in_the_prompt(way: str) -> None:
    opener = opener_of(WAYS[way])
    grammar = forced(way, opened=opener)
    assert opener
    assert allows(grammar, written(way, ("g", {})).removeprefix(opener))
    two = written(way, ("g", {}), ("g", {})).removeprefix(opener)
    assert allows(grammar, two) == (opener not in two)


def test_parameters_that_cannot_be_kept_to_are_named() -> None:
    def call(parameters: Any, way: str = "hermes", name: str = "f") -> Grammar:
        tool = {"type": "function", "function": {"name": name, "parameters": parameters}}
        return call_grammar(WAYS[way], [tool], parallel=True, opened="")

    with pytest.raises(OptionError, match=r"^tools: the parameters of f: .*uniqueItems"):
        call({"properties": {"a": {"type": "array", "uniqueItems": True}}})
    with pytest.raises(OptionError, match="of f are not of type object"):
        call({"type": "string"})
    with pytest.raises(UnsupportedError, match="'a b' can't be written"):
        call({"properties": {"a b": {}}}, "pythonic")
    assert allows(
        call({"properties": {"a b": {}}}),
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
    )


@pytest.mark.parametrize("is_thinking", [False, True])
def test_thoughts_come_first(is_thinking: bool) -> None:
    json_only = read_grammar({"json_schema": {"type": "object"}})
    assert json_only
    grammar = compose([json_only], THOUGHTS[0], is_thinking=is_thinking)
    thought = ("" if is_thinking else "<think>") + 'Hm {"x": </thin </think>'
    assert allows(grammar, thought + '\n\n{"a": 1}')
    assert allows(grammar, '{"a": 1}') != is_thinking
    assert not allows(grammar, thought + "no")
    assert not allows(grammar, thought)


@pytest.mark.parametrize("way", UNFORCED)
def test_some_ways_cannot_be_forced(way: str) -> None:
    assert opener_of(ALL[way]) == ""
    with pytest.raises(UnsupportedError, match=f"^tools: calls in the way of {way} can't"):
        call_grammar(ALL[way], TOOLS, parallel=True, opened="")


def test_a_form_or_calls() -> None:
    number = read_grammar({"regex": "[0-9]+"})
    assert number
    grammar = compose([number, forced("hermes")], None, is_thinking=False)
    assert allows(grammar, "42")
    assert allows(grammar, written("hermes", ("g", {})))
    assert not allows(grammar, "x")
    assert json.loads(grammar.text)


@pytest.mark.parametrize("way", WAYS)
def test_calls_keep_to_their_schemas_where_they_may_come(way: str) -> None:
    grammar = free_grammar(WAYS[way], TOOLS, parallel=True)
    for text in ("", "Hello, 1 < 2 {x} [y].", written(way, ("f", {"b": "q"}))):
        assert allows(grammar, text), text
    assert not allows(grammar, written(way, ("f", {"a": 1})))
    led = "So: " + written(way, ("g", {}))
    assert allows(grammar, led)
    wrong = "So: " + written(way, ("f", {}))
    assert allows(grammar, wrong) == (way in ("llama-3", "pythonic"))  # there it is just text
