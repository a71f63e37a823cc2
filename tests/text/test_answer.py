"""Answers taken apart: thoughts, words, calls of tools; however the text is cut."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from satchel.text.answer import AnswerParser, ToolCall
from satchel.text.conventions import CONVENTIONS, THOUGHTS, find_convention, find_thoughts
from satchel.text.json_text import DEPTH, BrokenTextError, JsonText

WAYS = {convention.name: convention for convention in CONVENTIONS}
NAMES = ("f", "g", "get_weather")
THINK = THOUGHTS[0]


class Read:
    """All that a parser gave out."""

    def __init__(self, parser: AnswerParser, pieces: list[str]) -> None:
        said = [*(parser.push(piece) for piece in pieces), parser.flush()]
        self.text = "".join(one.text for one in said)
        self.reasoning = "".join(one.reasoning for one in said)
        self.deltas = [delta for one in said for delta in one.calls]
        self.calls = parser.calls

    @property
    def pairs(self) -> list[tuple[str, Any]]:
        return [(call.name, json.loads(call.arguments)) for call in self.calls]

    @property
    def streamed(self) -> list[tuple[str, str]]:
        """Calls as deltas tell them, complete or not."""
        calls: list[tuple[str, str]] = []
        for delta in self.deltas:
            if delta.id:
                assert delta.index == len(calls)
                calls.append((delta.name, ""))
            name, arguments = calls.pop()
            calls.append((name, arguments + delta.arguments))
        return calls


def read(way: str | None, *pieces: str, **options: Any) -> Read:
    convention = WAYS[way] if way else None
    return Read(AnswerParser(None, convention, NAMES, **options), list(pieces))


def thoughts(*pieces: str, way: str | None = None, **options: Any) -> Read:
    convention = WAYS[way] if way else None
    return Read(AnswerParser(THINK, convention, NAMES, **options), list(pieces))


ONE, TWO = [("f", {"a": 1})], [("f", {"a": 1}), ("g", {})]


@pytest.mark.parametrize(
    ("way", "text", "calls", "said"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>', ONE, ""),
        ("hermes", 'So:\n\n<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>\n'
         '<tool_call>{"name": "g"}</tool_call>\n', TWO, "So:"),
        ("hermes", '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "g"}]</tool_call>',
         TWO, ""),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}', ONE, ""),  # its end is a stop
        ("hermes", '<tool_call>{"name": "else", "arguments": {}}</tool_call> ok', [("else", {})],
         " ok"),  # a tool that there is not is the caller's to refuse
        ("mistral", '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}, "id": "abcdefghi"}, '
         '{"name": "g", "arguments": {}}]', TWO, ""),
        ("mistral-named", 'Well [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]abc[ARGS]{}', TWO,
         "Well"),
        ("llama-3", '{"name": "f", "parameters": {"a": 1}}; {"name": "g", "parameters": {}}', TWO,
         ""),
        ("llama-3", '\n<|python_tag|>{"type": "function", "name": "f", "parameters": {"a": 1}}',
         ONE, ""),
        ("pythonic", "[f(a=1), g()]", TWO, ""),
        ("pythonic", ' [ f( a = 1 ) , g( ) ] ', TWO, ""),
        ("pythonic-marked", "<|tool_call_start|>[f(a=1), g()]<|tool_call_end|>Wait.", TWO, "Wait."),
        ("gemma", "Sure:\n```tool_code\nf(a=1)\nprint(g())\n```", TWO, "Sure:"),
        ("gemma", '```json\n{"name": "f", "parameters": {"a": 1}}\n```', ONE, ""),
        ("gemma", "[f(a=1), g()]", TWO, ""),
        ("function-gemma", "<start_function_call>call:f{a:1}<end_function_call>"
         "<start_function_call>call:g{}<end_function_call>", TWO, ""),
        ("function-gemma", 'So <start_function_call>call:f{s:<escape>x "{}<esc, <escape>,l:[1, '
         "<escape><escape>],d:{k: None ,t:true}}<end_function_call>",
         [("f", {"s": 'x "{}<esc, ', "l": [1, ""], "d": {"k": None, "t": True}})], "So"),
        ("gemma-4", '<|tool_call>call:f{<|"|>a<|"|>:1}<tool_call|>', ONE, ""),
    ],
)  # fmt: skip
def test_calls_in_every_way(way: str, text: str, calls: list[Any], said: str) -> None:
    found = read(way, text)
    assert (found.pairs, found.text) == (calls, said)
    assert found.streamed == [(call.name, call.arguments) for call in found.calls]
    assert len({call.id for call in found.calls}) == len(calls)


@pytest.mark.parametrize(
    ("way", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": nope}}</tool_call> bye'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1'),  # cut off
        ("hermes", '<tool_call>{"name": "f", "arguments": "a"}</tool_call>'),
        ("hermes", '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "\\ud800"}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1e999}}</tool_call>'),
        ("hermes", f'<tool_call>{{"name": "f", "arguments": {{"a": {"9" * 5000}}}}}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}, "parameters": {}}'),
        ("hermes", "\n <tool_call> \n"),
        ("hermes", "1 < 2 <tool <tool_cal"),
        ("mistral", "[TOOL_CALLS] I can't"),
        ("mistral", "[TOOL_CALLS][1]"),
        ("mistral-named", '[TOOL_CALLS]f g[ARGS]{"a": 1}'),
        ("mistral-named", "[TOOL_CALLS]f"),
        ("llama-3", '{"name": "Bob", "parameters": {}}'),  # not a tool: data
        ("llama-3", '{"name": "f"}'),
        ("llama-3", 'I say {"name": "f", "parameters": {}}'),
        ("llama-3", '<|python_tag|>search.call(query="x")'),
        ("pythonic", "[1, 2, 3]"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=(1, 2))]"),
        ("pythonic", "[f(a=b)]"),
        ("pythonic", "[f(a='x"),
        ("pythonic", "[len(a=1)]"),
        ("function-gemma", "<start_function_call>f{a:1}<end_function_call>"),
        ("function-gemma", "<start_function_call>call:f{a:x}<end_function_call>"),
        ("function-gemma", "<start_function_call>call:f{a:<escape>x"),
        ("gemma", '```json\n{"a": 2}\n```\n'),
        ("gemma", "```tool_code\nx = 5\n```"),
        ("gemma", "```python\nf(a=1)\n```"),
    ],
)
def test_what_only_looks_like_a_call_is_said(way: str, text: str) -> None:
    found = read(way, text)
    assert (found.text, found.calls) == (text, [])


def test_a_broken_call_does_not_hide_a_sound_one() -> None:
    found = read("hermes", '<tool_call><tool_call>{"name": "f"}</tool_call>')
    assert (found.text, found.pairs) == ("<tool_call>", [("f", {})])
    found = read("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}}, oh')
    assert (found.text, found.pairs) == (", oh", ONE)


def test_python_values() -> None:
    text = (
        '[f(a=\'it\\\'s "x"\\n\\d\', b="\\x41\\u00e9", '
        "c=[True, None, -1.5e3, {'k': false}], d={})]"
    )
    assert read("pythonic", text).pairs == [
        ("f", {"a": 'it\'s "x"\n\\d', "b": "Aé", "c": [True, None, -1.5e3, {"k": False}], "d": {}})
    ]


def test_one_call_only() -> None:
    text = '<tool_call>[{"name": "f"}, {"name": "g"}]</tool_call> and more'
    parser = AnswerParser(None, WAYS["hermes"], NAMES, parallel=False)
    assert parser.push(text).text == parser.flush().text == ""
    assert [call.name for call in parser.calls] == ["f"]
    assert parser.is_done


def test_a_call_streams_as_it_comes() -> None:
    parser = AnswerParser(None, WAYS["hermes"], NAMES)
    assert parser.push('<tool_call>{"name": "f", ').calls == ()
    (first,) = parser.push('"arguments": {"a').calls
    assert (first.index, first.name, first.arguments, len(first.id)) == (0, "f", '{"a', 9)
    (more,) = parser.push('": "b').calls
    assert (more.index, more.id, more.name, more.arguments) == (0, "", "", '": "b')
    assert parser.calls == []
    parser.push('"}}')
    assert parser.calls == [ToolCall(first.id, "f", '{"a": "b"}')]


@pytest.mark.parametrize("way", [None, "hermes"])
def test_thoughts(way: str | None) -> None:
    found = thoughts("\n<think>\nHm, 1 < 2 </thin\n\n</think>\n\nYes. <think>x</think>", way=way)
    assert (found.reasoning, found.text) == ("Hm, 1 < 2 </thin", "Yes. <think>x</think>")
    for text in ("Hm.</think>Yes.", "\n<think>\nHm.\n</think>\nYes."):
        found = thoughts(text, way=way, is_thinking=True)
        assert (found.reasoning, found.text) == ("Hm.", "Yes.")
    found = thoughts(" Yes. </think>", way=way)
    assert (found.reasoning, found.text) == ("", " Yes. </think>")
    found = thoughts("<think>for ever </thi", way=way)
    assert (found.reasoning, found.text) == ("for ever </thi", "")
    found = thoughts(" <thi", way=way)
    assert (found.reasoning, found.text) == ("", " <thi")


def test_thoughts_before_a_call() -> None:
    text = '<think>f!</think>\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    found = thoughts(text, way="hermes")
    assert (found.reasoning, found.text, found.pairs) == ("f!", "", ONE)


FRAGMENTS = st.sampled_from(
    ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "```tool_code\n", "```json", "```",
     "[", "]", "{", "}", "f(", "g(a=", ")", '"name": "f"', '"parameters": {', ", ", "<think>", "1",
     '"arguments": {"a": ', "</think>", "'x", '"', "\\", "<|python_tag|>", " ", "\n", "\\u00e",
     '{"name": "f", "parameters": {"a": [1]}}', "[f(a='b', c=2.5)]", "print(", "é", ";", "<|tool_",
     "<start_function_call>", "call:f{", "a:", "<escape>", "<end_function_call>", "<esc"]
)  # fmt: skip
TEXTS = st.lists(st.one_of(FRAGMENTS, st.text(max_size=3)), max_size=12).map("".join)


@given(
    way=st.sampled_from([*WAYS, None]), text=TEXTS, cuts=st.lists(st.integers(0, 80), max_size=6)
)
@settings(max_examples=150, deadline=None)
def test_cuts_make_no_difference(way: str | None, text: str, cuts: list[int]) -> None:
    places = sorted({0, len(text), *(min(cut, len(text)) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    whole, cut, single = (thoughts(*given, way=way) for given in ([text], pieces, list(text)))
    assert whole.text == cut.text == single.text
    assert whole.reasoning == cut.reasoning == single.reasoning
    assert whole.pairs == cut.pairs == single.pairs
    assert whole.streamed == cut.streamed == single.streamed
    if not whole.calls and not whole.reasoning and not text.lstrip().startswith("<think>"):
        assert whole.text == text  # nothing is lost


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip
KEYS = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
CALLS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.dictionaries(KEYS, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


def plain(value: Any) -> Any:
    """A value without names that have more than letters."""
    if isinstance(value, dict):
        return {f"k{i}": plain(one) for i, one in enumerate(value.values())}
    return [plain(one) for one in value] if isinstance(value, list) else value


@given(way=st.sampled_from(list(WAYS)), calls=CALLS)
@settings(max_examples=40, deadline=None)
def test_what_is_written_reads_back(way: str, calls: list[tuple[str, dict[str, Any]]]) -> None:
    if way in ("function-gemma", "gemma-4"):  # names stand there without quotes
        calls = [(name, plain(arguments)) for name, arguments in calls]
    found = read(way, "Now:\n" * (way == "hermes") + WAYS[way].write(calls))
    assert found.pairs == calls
    assert found.text == "Now:" * (way == "hermes")


@given(value=VALUES, cut=st.integers(0, 20), extra=st.text(min_size=1, max_size=2))
def test_json_is_followed_to_its_end(value: Any, cut: int, extra: str) -> None:
    text = json.dumps({"k": value, "last": [value]}, indent=cut % 3 or None)
    follower = JsonText()
    for char in text[:-1]:
        follower.push(char)
        assert not follower.is_done
    follower.push(text[-1])
    assert (follower.is_done, follower.key) == (True, "last")
    with pytest.raises(BrokenTextError):
        follower.push(extra[0])


@given(text=st.text(alphabet='{}[]",:0123456789.-+eEtrufalsn\\ \n', max_size=20))
def test_json_is_what_python_says_it_is(text: str) -> None:
    text = text.strip(" \n")
    follower = JsonText()
    try:
        for char in text:
            follower.push(char)
        sound = follower.is_done
    except BrokenTextError:
        sound = False

    def number(given: str) -> float:
        assume(not math.isinf(float(given)))
        return float(given)

    try:
        expected = isinstance(json.loads(text, parse_float=number), dict | list)
    except ValueError:
        expected = False
    assert sound == expected


def test_json_that_is_too_deep_is_broken() -> None:
    follower = JsonText()
    for _ in range(DEPTH):
        follower.push("[")
    with pytest.raises(BrokenTextError):
        follower.push("[")


def test_what_a_template_says_of_its_way() -> None:
    for way, sign in {
        "mistral": "[TOOL_CALLS][{", "mistral-named": "[TOOL_CALLS]f[ARGS]",
        "pythonic-marked": "<|tool_list_start|>[", "hermes": "<tool_call>{",
        "pythonic": "[func_name1(", "gemma": "```tool_code",
        "function-gemma": "<start_function_call>call:", "gemma-4": "<|tool_call>",
        "llama-3": 'in the format {"name": function name, "parameters": ...}',
    }.items():  # fmt: skip
        found = find_convention(f"{{{{ 'x {sign} y' }}}}")
        assert found
        assert found.name == way
    assert find_convention("<tool_call><function=f><parameter=a>") is None
    assert find_convention("{{ messages }}") is None
    assert find_thoughts("{{ '</think>' }}") == THINK
    assert find_thoughts("{{ messages }}") is None
