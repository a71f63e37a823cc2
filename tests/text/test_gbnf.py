"""GBNF: what llama.cpp's grammars mean is what they mean here."""

from __future__ import annotations

import re
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from satchel.base.errors import OptionError
from satchel.text.gbnf import IS_GBNF, to_lark

END = 256
JSON = r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""


class Bytes:
    """A vocabulary of the 256 bytes, and an end."""

    eos_token_id = END
    bos_token_id = None
    tokens = [*(bytes([byte]) for byte in range(256)), b"</s>"]  # noqa: RUF012
    special_token_ids = [END]  # noqa: RUF012
    is_tokenizer_wrapper = True

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


@cache
def vocabulary() -> LLTokenizer:
    return LLTokenizer(Bytes(), n_vocab=257, eos_token=[END], slices=[])


def fits(grammar: str, text: str) -> bool:
    state = LLMatcher(vocabulary(), LLMatcher.grammar_from_lark(to_lark(grammar)), log_level=0)
    assert not state.is_error(), state.get_error()
    raw = list(text.encode())
    return state.try_consume_tokens(raw) == len(raw) and state.is_accepting()


@pytest.mark.parametrize(
    ("grammar", "good", "bad"),
    [
        ('root ::= "a" "b"', ["ab"], ["a", "abc", ""]),
        ('root ::= "a" | "b"', ["a", "b"], ["ab"]),
        ('root ::= "a" |\n "b"', ["a", "b"], ["ab"]),
        ('root ::= ("a" | "b")+ "c"?', ["a", "abc"], ["c", ""]),
        ('root ::= "ab"*', ["", "ab", "abab"], ["a", "aba"]),
        ('root ::= "a"{2}', ["aa"], ["a", "aaa"]),
        ('root ::= "ab"{1,2}', ["ab", "abab"], ["", "ababab"]),
        ("root ::= [ab]{2,}", ["ab", "aaaa"], ["a", "ac"]),
        ("root ::= [a-cx] [^a-c]", ["ad", "xx", "aé", "a\n"], ["da", "ab"]),
        ("root ::= [a-] [\\]\\[]", ["a]", "-["], ["b]"]),
        ("root ::= .", ["a", "\n", "é", "😀"], ["", "ab"]),
        (r'root ::= "\x41\u00e9\U0001F600\n\t\"\\"', ['Aé😀\n\t"\\'], ["A"]),
        ('root ::= [/] "/" "#" # a comment "x"', ["//#"], ["//"]),
        ('root ::= ""', [""], ["a"]),
        ('root ::= a-b c_d\na-b ::= "1"\n\nc_d ::= "2"', ["12"], ["1"]),
        ('root ::= "(" root ")" | "."', [".", "((.))"], ["(.", "()"]),
        ('root ::= "a" root | ', ["", "aaa"], ["b"]),
        ('root ::= root "a" | "b"', ["b", "baa"], ["a"]),
        # a longest match would take too much
        ('root ::= "a"* "ab"', ["ab", "aaab"], ["a"]),
        ('root ::= [a-z]+ "ing"', ["ringing"], ["ing"]),
        ('root ::= ("a" | "ab") ("c" | "bcd")', ["ac", "abc", "abcd", "abbcd"], ["ab"]),
        (JSON, ['{"a": [1, -2.5e3, "\\u00e9x"]}', "{}", '{"b":\n\ttrue}'], ["[]", '{"a"}', "{"]),
    ],
)
def test_texts_fit_or_do_not(grammar: str, good: list[str], bad: list[str]) -> None:
    assert IS_GBNF.search(grammar)
    assert [text for text in good if not fits(grammar, text)] == []
    assert [text for text in bad if fits(grammar, text)] == []


def regexes() -> st.SearchStrategy[str]:
    """Regexes that are GBNF too, when their letters are quoted."""
    return st.recursive(
        st.sampled_from("abc"),
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(" ".join),
            st.tuples(inner, inner).map(lambda pair: f"({pair[0]} | {pair[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{0,2}"])).map(
                lambda pair: f"({pair[0]}){pair[1]}"
            ),
        ),
        max_leaves=6,
    )


@settings(deadline=None, max_examples=60)
@given(regexes(), st.lists(st.text("abc", max_size=5), max_size=12))
def test_a_grammar_means_what_the_same_regex_means(regex: str, texts: list[str]) -> None:
    grammar = "root ::= " + re.sub("[abc]", r'"\g<0>"', regex)
    plain = re.compile(regex.replace(" ", ""))
    for text in texts:
        assert fits(grammar, text) == bool(plain.fullmatch(text))


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ('a ::= "x"', "no rule 'root'"),
        ("root ::= a", "line 1: there is no rule 'a'"),
        ('root ::= "a"\nroot ::= "b"', "line 2: the rule 'root' is there twice"),
        ('root ::= "a', "line 1: a literal or a class is not closed"),
        ("root ::= [a", "not closed"),
        ("root ::= []", "matches nothing"),
        ("root ::= [b-a]", "the range from 'b' to 'a' is empty"),
        (r'root ::= "\q"', "is no escape"),
        (r'root ::= "\x4"', "is no escape"),
        (r'root ::= "\ud800"', "is no character"),
        (r'root ::= "\U00110000"', "is no character"),
        ('root ::= ("a"', r"'\)' is missing"),
        ('root ::= "a")', r"'\)' can't stand here"),
        ('root ::= "a"{', "a number of times"),
        ('root ::= "a"{3,2}', "is never"),
        ('root ::= * "a"', "'\\*' can't stand here"),
        ('root ::= "a"\n | "b"', "line 2: a rule's name is missing"),
        ("root = a\nb ::= a", "'::=' is missing"),
        ("root ::= <think>", "a token by its name or number is not supported"),
        ("root ::= !<[12]>", "a token by its name or number is not supported"),
        ("root ::= " + "(" * 200 + '"a"' + ")" * 200, "nested more than"),
    ],
)
def test_what_is_broken_is_named_with_its_line(grammar: str, message: str) -> None:
    with pytest.raises(OptionError, match=f"grammar: .*{message}"):
        to_lark(grammar)


def test_groups_may_be_nested_as_deep_as_people_write_them() -> None:
    assert fits("root ::= " + "(" * 90 + '"a"' + ")" * 90, "a")
