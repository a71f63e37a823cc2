"""What the text of an answer must be: a JSON schema, a regex, a grammar, one of several choices.

Each becomes a grammar of llguidance (https://github.com/guidance-ai/llguidance), the optional
package that tells which tokens may come next.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from satchel.base.errors import OptionError
from satchel.text.gbnf import IS_GBNF, to_lark
from satchel.text.schema import read_schema

if TYPE_CHECKING:
    from llguidance import LLMatcher

FIELDS = ("json_schema", "regex", "grammar", "choice")
MAX_REGEX = 8192  # characters; the work may grow with their square
MAX_GRAMMAR = 32768
MAX_LINES = 2000  # rules may stand in a chain, and each link costs stack
# One way to write each JSON value, that of Python's json.dumps: what has a name can't be spelled
# otherwise (as a) to escape its schema, and no model loses itself in white space.
JSON_STYLE = {
    "lenient": False,
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allowed_escapes": '"\\bfnrt',
}
_ADVICE = re.compile(r"; (?:either increase|try avoiding) .*")  # of limits that are not the user's
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")


@dataclass(frozen=True)
class Grammar:
    """What an answer must be: `text` in llguidance's own notation, and the `field` that said so."""

    field: str
    text: str


def read_grammar(options: Mapping[str, Any]) -> Grammar | None:
    """The grammar that one of FIELDS asks for, None where none does.

    Raises OptionError for two of them, and for a value that is damaged or can't be kept to in full;
    a part of that, which only compiling it tells, is left to `explain`.
    """
    given = {name: options[name] for name in FIELDS if options.get(name) is not None}
    if not given:
        return None
    (field, value), *others = given.items()
    if others:
        raise OptionError(f"{others[0][0]}: {field} is given too; give one of them")
    return Grammar(field, _READERS[field](value))


def matcher() -> type[LLMatcher]:
    """What compiles grammars. Raises OptionError when llguidance is not installed."""
    try:
        from llguidance import LLMatcher
    except ImportError:
        raise OptionError(
            "json_schema, regex, grammar and choice need a package more: "
            "pip install 'satchel[structured]'"
        ) from None
    return LLMatcher


def explain(grammar: Grammar, message: str) -> OptionError:
    """What llguidance says of a grammar, in one line."""
    lines = [line.strip() for line in message.splitlines() if line.strip()] or ["it is broken"]
    reason = next((line for line in lines if line.startswith("error: ")), lines[0])
    reason = _PLACE.sub(r"line \1, column \2: ", reason.removeprefix("error: "))
    reason = _ADVICE.sub("", reason)
    if reason.startswith("panic"):
        reason = "it is too large"
    if grammar.field in ("regex", "choice"):
        reason = reason.removeprefix("line 1, column 8: ")  # where llguidance put it
    return OptionError(f"{grammar.field}: {reason[:300]}")


def _from_schema(value: Any) -> str:
    schema = read_schema(value)
    try:
        return matcher().grammar_from_json_schema(schema, overrides=cast("Any", JSON_STYLE))
    except ValueError as error:
        raise OptionError(f"json_schema: {error}") from None


def _from_regex(value: Any) -> str:
    return matcher().grammar_from_regex(_text("regex", value, MAX_REGEX))


def _from_grammar(value: Any) -> str:
    text = _text("grammar", value, MAX_GRAMMAR)
    if IS_GBNF.search(text):
        text = to_lark(text)
    if "%json" in text:
        raise OptionError("grammar: '%json' is not supported; use json_schema")
    if text.count("\n") > MAX_LINES:
        raise OptionError(f"grammar: it has more than {MAX_LINES} lines")
    return matcher().grammar_from_lark(text)


def _from_choice(value: Any) -> str:
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise OptionError(f"choice: {str(value)[:40]!r} is not a list of texts")
    choices = cast("Sequence[Any]", value)
    if not choices:
        raise OptionError("choice: the list is empty; give one text or more")
    texts = [_text("choice", one, MAX_GRAMMAR) for one in choices]
    whole = "|".join("".join(map(_literal, text)) for text in dict.fromkeys(texts))
    if len(whole) > 10 * MAX_GRAMMAR:
        raise OptionError("choice: they are too long together")
    return matcher().grammar_from_regex(whole)


def _literal(letter: str) -> str:
    return letter if letter.isalnum() else f"\\x{{{ord(letter):X}}}"


def _text(field: str, value: Any, most: int) -> str:
    if not isinstance(value, str) or not value:
        raise OptionError(f"{field}: {str(value)[:40]!r} is not a text of one character or more")
    if len(value) > most:
        raise OptionError(f"{field}: it is longer than {most} characters")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise OptionError(f"{field}: it has half a surrogate pair, which is no text") from None
    return value


_READERS = {
    "json_schema": _from_schema,
    "regex": _from_regex,
    "grammar": _from_grammar,
    "choice": _from_choice,
}
