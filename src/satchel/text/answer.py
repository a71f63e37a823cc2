"""An answer taken apart as it comes: what the model thinks, what it says, which tools it calls.

The text arrives in pieces cut anywhere, and is read one character at a time, so that the cuts can
make no difference. A text that looks like a call and then is none is given out as what was said:
nothing is lost. Spaces around thoughts and calls belong to their form, and are dropped.
"""

from __future__ import annotations

import json
import os
import re
from collections import deque
from collections.abc import Collection, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from satchel.text.conventions import Convention, Marks, Opening
from satchel.text.json_text import BrokenTextError, JsonText
from satchel.text.python_calls import PythonValues, is_name
from satchel.text.quoted_values import QuotedValues

T = TypeVar("T")
Steps: TypeAlias = Generator[None, str, T]  # is sent one character after the other, END in the end
END = ""
ARGUMENTS = ("arguments", "parameters")
SEPARATORS = ";,"  # what models put between calls that have no marks of their own


@dataclass(frozen=True)
class ToolCall:
    """A call that the model wants made; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True)
class CallDelta:
    """What came of call number `index`: first its id and name, then its arguments in parts."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(frozen=True)
class Said:
    """What a piece of the answer brought."""

    text: str = ""
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()


class Characters:
    """The characters of a text that is still coming, which can be put back after a look."""

    def __init__(self) -> None:
        self._again: deque[str] = deque()
        self._taken: list[str] = []

    def next(self) -> Steps[str]:
        """The next one; END, again and again, when there is none."""
        char = self._again.popleft() if self._again else (yield)
        if not char:
            self._again.append(END)
        self._taken.append(char)
        return char

    def put_back(self, chars: Collection[str]) -> None:
        """Has these come again."""
        self._again.extendleft(reversed(list(chars)))

    def begin(self, taken: str = "") -> None:
        """From now on remembers what is taken, for `give_up`."""
        self._taken = [taken]

    def give_up(self) -> str:
        """All that was taken but the last character, which comes again."""
        *taken, last = self._taken
        self.put_back([last])
        return "".join(taken)


class AnswerParser:
    """Takes one answer apart. Calls are looked for where there is a convention to write them in."""

    def __init__(
        self,
        marks: Marks | None = None,
        convention: Convention | None = None,
        names: Collection[str] = (),
        *,
        is_thinking: bool = False,
        parallel: bool = True,
    ) -> None:
        """`is_thinking`: the prompt has opened the thoughts. Calls without marks of their own count
        only with one of `names`. Without `parallel`, what follows the first call is dropped.
        """
        self.calls: list[ToolCall] = []  # those that are complete
        self._marks, self._is_thinking = marks, is_thinking
        self._convention, self._names, self._parallel = convention, names, parallel
        self._chars = Characters()
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._deltas: list[CallDelta] = []
        self._n_begun = 0
        self._call = CallDelta(0)  # the one in the making: its id and name
        self._arguments: list[str] = []
        self._steps = self._read()
        next(self._steps)

    @property
    def is_done(self) -> bool:
        """Whether the rest of the answer is of no interest."""
        return bool(self.calls) and not self._parallel

    def push(self, piece: str) -> Said:
        """What is certain, now that `piece` has come."""
        for char in piece:
            if self.is_done:
                break
            self._steps.send(char)
        return self._said()

    def flush(self) -> Said:
        """The rest; nothing more will come."""
        if not self.is_done:
            self._steps.send(END)
        return self._said()

    def _said(self) -> Said:
        merged: list[CallDelta] = []
        for delta in self._deltas:
            if merged and not delta.id:
                last = merged.pop()
                more = last.arguments + delta.arguments
                delta = CallDelta(last.index, last.id, last.name, more)
            merged.append(delta)
        said = Said("".join(self._text), "".join(self._reasoning), tuple(merged))
        for found in (self._text, self._reasoning, self._deltas):
            found.clear()
        return said

    def _read(self) -> Steps[None]:
        if self._marks:
            yield from self._think(self._marks)
        if self._convention:
            yield from self._speak(self._convention)
        while char := (yield from self._chars.next()):
            self._text.append(char)
        yield  # the end has come

    def _think(self, marks: Marks) -> Steps[None]:
        opened = yield from self._finds(marks.opener)  # some open them though the prompt has
        if not opened and not self._is_thinking:
            return
        yield from self._skip_spaces()
        held = ""  # spaces, and what may be the beginning of the closer
        while held.lstrip() != marks.closer:
            char = yield from self._chars.next()
            held += char
            while held and not (char and marks.closer.startswith(held.lstrip())):
                self._reasoning.append(held[0])
                held = held[1:]
            if not char:
                return
        yield from self._skip_spaces()

    def _speak(self, convention: Convention) -> Steps[None]:
        spaces = held = ""
        fresh = True  # nothing was said yet, or since the last call
        while True:
            char = yield from self._chars.next()
            held += char
            openings = convention.openings(fresh)
            while held and not any(opener.startswith(held) for opener in openings):
                first, held = held[0], held[1:]
                if first.isspace() or (fresh and self.calls and first in SEPARATORS):
                    spaces += first
                else:
                    self._text.append(spaces + first)
                    spaces, fresh = "", False
                    openings = convention.openings(fresh)
            if held in openings:
                self._chars.begin(spaces + held)
                fresh = yield from self._call_tools(held, openings[held])
                spaces = held = ""
            elif not char:
                if held or not (fresh and self.calls):
                    self._text.append(spaces + held)
                return

    def _call_tools(self, opener: str, opening: Opening) -> Steps[bool]:
        """Whether what an opener opens is calls; else it was said."""
        try:
            yield from self._body(opener, opening)
        except BrokenTextError:
            rest = self._chars.give_up()
            if rest.strip():
                self._text.append(rest)
                return False
        if opening.closer:
            yield from self._finds(opening.closer)
        return True

    def _body(self, opener: str, opening: Opening) -> Steps[None]:
        marked = opening.is_marked
        first = opener if opener in ("{", "[") else (yield from self._after_spaces())
        if opening.quote:
            yield from self._quoted_call(first, opening.quote)
        elif first == "{":
            yield from self._json_call(first, marked)
        elif first == "[":
            second = yield from self._after_spaces()
            if second == "{":
                yield from self._json_calls(second, marked)
            else:
                yield from self._python_calls(second, marked, closer="]")
        elif opening.named:
            yield from self._named_call(first, opening.named)
        elif opening.is_code:
            yield from self._python_calls(first, marked, closer=opening.closer[0])
            self._chars.put_back(opening.closer[0])
        else:
            raise BrokenTextError

    def _json_calls(self, first: str, marked: bool) -> Steps[None]:
        """A list of calls, from its first item on."""
        while True:
            yield from self._json_call(first, marked)
            char = yield from self._after_spaces()
            if char == "]":
                return
            if char != ",":
                raise BrokenTextError
            first = yield from self._after_spaces()
            if first != "{":
                raise BrokenTextError

    def _json_call(self, first: str, marked: bool) -> Steps[None]:
        """{"name": ..., "arguments": {...}}, in any order, and whatever else stands there."""
        text = JsonText()
        text.push(first)
        name, quoted, key = "", "", ""
        early: list[str] = []  # arguments before the name
        begun = False
        while not text.is_done:
            char = yield from self._chars.next()
            inside = text.push(char)
            if inside and text.key in ARGUMENTS:
                key = key or text.key
                if text.key != key or (not early and not begun and char != "{"):
                    raise BrokenTextError
                (self._add if begun else early.append)(char)
            elif inside and text.key == "name" and not name:
                quoted += char
                if text.depth == 1 and text.is_after_value and quoted.startswith('"'):
                    name = json.loads(quoted)
            if name and early and not begun:
                begun = True
                self._begin(name, marked)
                self._add("".join(early))
        if not begun:
            if not name or early or not marked:
                raise BrokenTextError
            self._begin(name, marked)
            self._add("{}")
        self._finish()

    def _named_call(self, first: str, marks: tuple[str, ...]) -> Steps[None]:
        """name[ARGS]{...}, perhaps with a [CALL_ID] between them."""
        head = yield from self._head(first)
        self._begin(re.split("|".join(map(re.escape, marks)), head)[0], marked=True)
        text = JsonText()
        char = "{"
        while True:
            text.push(char)
            self._add(char)
            if text.is_done:
                break
            char = yield from self._chars.next()
        self._finish()

    def _quoted_call(self, first: str, quote: str) -> Steps[None]:
        """call:name{a:1}, with texts between quotes of their own."""
        head = yield from self._head(first)
        if not head.startswith("call:"):
            raise BrokenTextError
        self._begin(head.removeprefix("call:"), marked=True)
        values = QuotedValues(quote)
        self._add(values.push("{"))
        while not values.is_done:
            char = yield from self._chars.next()
            self._add(values.push(char))
        self._finish()

    def _head(self, first: str) -> Steps[str]:
        """What stands before the arguments, whose first brace is taken too."""
        head = first
        while not head.endswith("{"):
            char = yield from self._chars.next()
            head += char
            if not char or char.isspace() or len(head) > 200:
                raise BrokenTextError
        return head[:-1]

    def _python_calls(self, first: str, marked: bool, closer: str) -> Steps[None]:
        """f(a=1), g(): one after the other, until the closer."""
        while True:
            name = yield from self._name(first, "(")
            if wrapped := name == "print" and name not in self._names:
                name = yield from self._name((yield from self._after_spaces()), "(")
            self._begin(name, marked)
            yield from self._python_arguments()
            if wrapped and (yield from self._after_spaces()) != ")":
                raise BrokenTextError
            self._finish()
            char = yield from self._after_spaces()
            if char and char in SEPARATORS:
                char = yield from self._after_spaces()
            if char == closer:
                return
            first = char

    def _python_arguments(self) -> Steps[None]:
        """a=1, b='x'), as JSON."""
        values = PythonValues()
        self._add(values.open())
        char = yield from self._after_spaces()
        while char != ")":
            name = yield from self._name(char, "=")
            self._add(values.begin(name))
            char = yield from self._after_spaces()
            while not values.is_between(char):
                self._add(values.push(char))
                char = yield from self._chars.next()
            self._add(values.end())
            if char == ",":
                char = yield from self._after_spaces()
        self._add(values.close())

    def _name(self, first: str, end: str) -> Steps[str]:
        """A name that begins with `first`, and the sign after it."""
        name = first
        while True:
            char = yield from self._chars.next()
            if char == end:
                break
            name += char
            if not char or len(name) > 200 or not is_name(name.rstrip()):
                raise BrokenTextError
        return name.rstrip()

    def _begin(self, name: str, marked: bool) -> None:
        if name not in self._names and not (marked and is_name(name)):
            raise BrokenTextError
        # Mistral's templates want ids of just this kind; no other minds
        self._call = CallDelta(self._n_begun, os.urandom(5).hex()[:9], name)
        self._n_begun += 1
        self._arguments = []
        self._deltas.append(self._call)

    def _add(self, arguments: str) -> None:
        if arguments:
            self._arguments.append(arguments)
            self._deltas.append(CallDelta(self._call.index, arguments=arguments))

    def _finish(self) -> None:
        call = self._call
        self.calls.append(ToolCall(call.id, call.name, "".join(self._arguments)))
        self._chars.begin()

    def _skip_spaces(self) -> Steps[None]:
        self._chars.put_back([(yield from self._after_spaces())])

    def _after_spaces(self) -> Steps[str]:
        """The next character that is no space."""
        char = yield from self._chars.next()
        while char.isspace():
            char = yield from self._chars.next()
        return char

    def _finds(self, mark: str) -> Steps[bool]:
        """Whether a mark comes now, perhaps after spaces; only then it is taken."""
        taken = [(yield from self._chars.next())]
        while taken[-1].isspace():
            taken.append((yield from self._chars.next()))
        n_spaces = len(taken) - 1
        while "".join(taken[n_spaces:]) != mark:
            if not taken[-1] or not mark.startswith("".join(taken[n_spaces:])):
                self._chars.put_back(taken)
                return False
            taken.append((yield from self._chars.next()))
        return True
