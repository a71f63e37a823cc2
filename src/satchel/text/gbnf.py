"""GBNF, the notation of llama.cpp's grammars, written again as the Lark that llguidance reads.

GBNF works character by character and tries all ways at once; Lark first cuts the text into tokens,
each as long as it can be. So that a grammar keeps its meaning, each token here is one character,
and everything longer a rule. After llama.cpp's grammars/README.md.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from satchel.base.errors import OptionError

DEPTH = 100  # of groups within groups
IS_GBNF = re.compile(r"^[ \t]*[A-Za-z][\w-]*[ \t]*::=", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"(?:[ \t]|#[^\r\n]*)*")
_LINES = re.compile(r"(?:[ \t\r\n]|#[^\r\n]*)*")
_TIMES = re.compile(r"\{[ \t]*(\d+)[ \t]*(,[ \t]*(\d*)[ \t]*)?\}")
_ESCAPE = re.compile(r'\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|([nrt\\"\[\]]))')
_ATOM = re.compile(r'\w+|/\S+/|""')
_SINGLE = {"n": "\n", "r": "\r", "t": "\t"}
EMPTY = '""'
ANY = "/[\\x{0}-\\x{10FFFF}]/"  # one character, a line's end too


def to_lark(text: str) -> str:
    """The same language in Lark. Raises OptionError, naming the line."""
    return _Reader(text).lark()


@dataclass
class _Reader:
    text: str
    at: int = 0
    depth: int = 0
    rules: list[str] = field(default_factory=list[str])  # those of groups come before their user's
    names: dict[str, str] = field(default_factory=dict[str, str])  # of the grammar -> in Lark
    used: dict[str, int] = field(default_factory=dict[str, int])  # where each was used first
    defined: set[str] = field(default_factory=set[str])

    def lark(self) -> str:
        self._skip(_LINES)
        while self.at < len(self.text):
            self._rule()
            self._skip(_LINES)
        if "root" not in self.defined:
            raise OptionError("grammar: it has no rule 'root' to begin with")
        for name, place in self.used.items():
            if name not in self.defined:
                self.at = place
                self._fail(f"there is no rule {name!r}")
        return "\n".join([f"start: {self.names['root']}", *self.rules])

    def _rule(self) -> None:
        name = self._take(_NAME, "a rule's name")
        self._skip(_SPACE)
        self._take(re.compile("::="), "'::='")
        if name in self.defined:
            self._fail(f"the rule {name!r} is there twice")
        self.defined.add(name)
        self._skip(_LINES)
        self.rules.append(f"{self._named(name)}: {self._choices(nested=False)}")
        if self.at < len(self.text) and self.text[self.at] not in "\r\n":
            self._fail(f"{self.text[self.at]!r} can't stand here")

    def _choices(self, nested: bool) -> str:
        """Sequences divided by bars."""
        choices = [self._sequence(nested)]
        while self._next() == "|":
            self.at += 1
            self._skip(_LINES)
            choices.append(self._sequence(nested))
        return " | ".join(choices)

    def _sequence(self, nested: bool) -> str:
        items: list[str] = []
        space = _LINES if nested else _SPACE
        self._skip(space)
        while (item := self._item()) is not None:
            self._skip(space)
            while (times := self._repeats()) is not None:
                item = self._rule_for(item) + times
                self._skip(space)
            items.append(item)
        return " ".join(item for item in items if item) or EMPTY

    def _item(self) -> str | None:
        """A literal, a class, a group, a name or a dot; None where none begins."""
        first = self._next()
        if first == '"':
            return " ".join(map(_one_of, self._literal()))
        if first == "[":
            return self._class()
        if first == "(":
            return self._group()
        if first == ".":
            self.at += 1
            return ANY
        if first in ("<", "!"):
            self._fail("a token by its name or number is not supported")
        if not _NAME.match(self.text, self.at):
            return None
        place = self.at
        name = self._take(_NAME, "a name")
        self.used.setdefault(name, place)
        return self._named(name)

    def _group(self) -> str:
        if self.depth == DEPTH:
            self._fail(f"groups are nested more than {DEPTH} deep")
        self.at += 1
        self.depth += 1
        inside = self._choices(nested=True)
        self.depth -= 1
        self._take(re.compile(r"\)"), "')'")
        return self._rule_for(inside)

    def _literal(self) -> list[str]:
        self.at += 1
        letters: list[str] = []
        while self._next() != '"':
            letters.append(self._letter())
        self.at += 1
        return letters

    def _class(self) -> str:
        """[a-z_], [^a-z]: a regex that matches one character."""
        self.at += 1
        sign = ""
        if self._next() == "^":
            self.at += 1
            sign = "^"
        ranges = ""
        while self._next() != "]":
            low = high = self._letter()
            if self._next() == "-" and self.text[self.at + 1 : self.at + 2] != "]":
                self.at += 1
                high = self._letter()
            if low > high:
                self._fail(f"the range from {low!r} to {high!r} is empty")
            ranges += f"{_code(low)}-{_code(high)}"
        self.at += 1
        if not ranges:
            return ANY if sign else self._fail("a class without characters matches nothing")
        return f"/[{sign}{ranges}]/"

    def _letter(self) -> str:
        """One character, perhaps escaped."""
        if not self._next():
            self._fail("a literal or a class is not closed")
        if self._next() != "\\":
            self.at += 1
            return self.text[self.at - 1]
        found = _ESCAPE.match(self.text, self.at)
        if not found:
            self._fail(f"{self.text[self.at : self.at + 2]!r} is no escape")
        *codes, single = found.groups()
        code = int(next((c for c in codes if c), "0"), 16)
        if code > 0x10FFFF or 0xD800 <= code < 0xE000:
            self._fail(f"{found[0]!r} is no character")
        self.at = found.end()
        return _SINGLE.get(single, single) if single else chr(code)

    def _repeats(self) -> str | None:
        """How often the item before may come, as Lark says it; None: once."""
        sign = self._next()
        if sign and sign in "*+?":
            self.at += 1
            return sign
        if sign != "{":
            return None
        found = _TIMES.match(self.text, self.at)
        if not found:
            self._fail("after '{' a number of times is missing")
        least, comma, most = found.groups()
        if most and int(most) < int(least):
            self._fail(f"{found[0]} is never")
        self.at = found.end()
        return f"{{{least},{most or ''}}}" if comma else f"{{{least},{least}}}"

    def _rule_for(self, item: str) -> str:
        """One name, or one token, for what may be several."""
        if _ATOM.fullmatch(item):
            return item
        self.rules.append(f"g{len(self.rules)}: {item or EMPTY}")
        return self.rules[-1].split(":")[0]

    def _named(self, name: str) -> str:
        """Lark has rules in small letters, without hyphens."""
        return self.names.setdefault(name, f"r{len(self.names)}")

    def _next(self) -> str:
        return self.text[self.at : self.at + 1]

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def _take(self, pattern: re.Pattern[str], what: str) -> str:
        found = pattern.match(self.text, self.at)
        if not found:
            self._fail(f"{what} is missing before {self.text[self.at : self.at + 10]!r}")
        self.at = found.end()
        return found[0]

    def _fail(self, reason: str) -> NoReturn:
        line = self.text.count("\n", 0, self.at) + 1
        raise OptionError(f"grammar: line {line}: {reason}")


def _one_of(letter: str) -> str:
    return f"/[{_code(letter)}]/"


def _code(letter: str) -> str:
    return f"\\x{{{ord(letter):X}}}"
