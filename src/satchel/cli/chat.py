"""`satchel chat`: a conversation. Answers go to stdout; all else, the prompt too, to stderr."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from satchel.base import log
from satchel.base.errors import OptionError, SatchelError
from satchel.base.options import data_dir, options
from satchel.cli.flags import answer_options
from satchel.cli.output import timings, write_stream
from satchel.cli.run import open_model

if TYPE_CHECKING:
    from satchel.api import Session, Stats

HELP = """/help         this list
/reset        forget the conversation
/save FILE    write the conversation to a file
/load FILE    go on with a conversation that was saved
/stats        what the last answer took
/exit         leave; so does the end of the input
A line that ends in a backslash goes on in the next one; a message in triple quotes has many lines.
Ctrl-C stops an answer."""
QUOTES = '"""'
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


def chat(args: argparse.Namespace) -> int:
    """Talks until /exit or the end of the input; 1 when input that was no person's had errors."""
    answering = answer_options(args)
    with (
        open_model(args) as llm,
        llm.session(system=args.system_prompt) as session,
    ):
        reader = Reader()
        if reader.is_person:
            log.note(f"{llm.name}: say something, or /help")
        kept = Kept(session, args.session, args.system_prompt) if args.session is not None else None
        failed = Talk(session, answering, quiet=args.quiet, kept=kept).run(reader)
        if kept:
            kept.close()
    return 1 if failed and not reader.is_person else 0


class Kept:
    """A conversation that has a name, and goes on whenever it is called."""

    def __init__(self, session: Session, name: str, system: str | None) -> None:
        """Goes on where it was, if it was before. Raises OptionError and FileFormatError."""
        if not NAME.fullmatch(name):
            raise OptionError(
                f"--session {name}: a name has letters, digits, '.', '_' and '-' only, and begins "
                "with a letter or digit"
            )
        folder = data_dir() / "sessions"
        self.session, self.path = session, folder / f"{name}.json"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise OptionError(f"can't write to {folder}: {error.strerror}") from None
        if not self.path.exists():
            return
        session.load(self.path)
        begun = next((m["content"] for m in session.messages if m["role"] == "system"), None)
        if system is not None and session.messages and system != begun:
            raise OptionError(
                f"--system-prompt: the conversation {name} has begun with another; "
                "choose another name for --session"
            )
        log.note(f"{name} goes on: {len(session.messages)} messages until now")

    def note(self) -> None:
        """Writes the messages: a process that is killed loses none."""
        self.session.save(self.path, messages_only=True)

    def close(self) -> None:
        """Writes what was computed, too."""
        self.session.save(self.path)


class Talk:
    """The loop of a conversation."""

    def __init__(
        self,
        session: Session,
        answering: dict[str, Any],
        *,
        quiet: bool,
        kept: Kept | None = None,
    ) -> None:
        self.session, self.answering, self.quiet, self.kept = session, answering, quiet, kept
        self.stats: Stats | None = None
        self.commands: dict[str, Callable[[str], None]] = {
            "/help": lambda _: log.note(HELP),
            "/reset": self.reset,
            "/save": lambda path: self.session.save(_named(path)),
            "/load": lambda path: self.session.load(_named(path)),
            "/stats": self.show_stats,
        }

    def run(self, reader: Reader) -> bool:
        """Reads and answers until the end; whether anything went wrong."""
        failed = False
        while True:
            try:
                message = reader.message()
            except KeyboardInterrupt:  # throws away what was typed
                log.note("")
                continue
            if message is None or message.strip() in ("/exit", "/quit"):
                return failed
            try:
                self.take(message)
            except SatchelError as error:
                log.note(f"satchel: error: {error}")
                failed = True

    def take(self, message: str) -> None:
        """Does what a message asks. Raises SatchelError."""
        word, _, rest = message.strip().partition(" ")
        if not word:
            return
        if message.startswith("/") and "\n" not in message:
            if word not in self.commands:
                raise OptionError(f"{word} is not known; /help lists what is")
            self.commands[word](rest.strip())
            return
        self.answer(message)

    def answer(self, message: str) -> None:
        """Prints the answer; Ctrl-C ends it early, and what was said so far counts."""
        with self.session.send_stream(message, **self.answering) as stream:
            try:
                write_stream(stream)
            except KeyboardInterrupt:
                stream.close()
                print(flush=True)
        self.stats = stream.stats
        if self.kept:
            self.kept.note()
        if self.stats and not self.quiet:
            log.note(timings(self.stats))

    def reset(self, _: str) -> None:
        self.session.reset()
        self.stats = None
        log.note("the conversation is forgotten")

    def show_stats(self, _: str) -> None:
        log.note(timings(self.stats) if self.stats else "nothing was answered yet")
        log.note(f"{len(self.session.messages)} messages in this conversation")


def _named(path: str) -> str:
    if not path:
        raise OptionError("which file? write its name behind the command")
    return path


class Reader:
    """Messages from a person at a terminal, with history, or line by line from a pipe."""

    def __init__(self) -> None:
        self.is_person = sys.stdin.isatty()
        # with both ends on the terminal input() edits lines; elsewhere it would write to stdout
        self.edits = self.is_person and sys.stdout.isatty()
        if self.edits:
            _remember(options().cache_dir / "chat_history")

    def message(self) -> str | None:
        """The next message; None at the end of the input."""
        line = self.line("> ")
        if line is None:
            return None
        if line.startswith(QUOTES):
            return self.quoted(line.removeprefix(QUOTES))
        while line.endswith("\\"):
            more = self.line(". ")
            line = line.removesuffix("\\") + ("" if more is None else "\n" + more)
        return line

    def quoted(self, line: str) -> str:
        """A message that goes on until the closing quotes."""
        lines: list[str] = []
        more: str | None = line
        while more is not None and not more.rstrip().endswith(QUOTES):
            lines.append(more)
            more = self.line(". ")
        if more is not None:
            lines.append(more.rstrip().removesuffix(QUOTES))
        return "\n".join(lines).strip("\n")

    def line(self, prompt: str) -> str | None:
        """One line without its end; None at the end of the input."""
        try:
            if self.edits:
                return input(prompt)
            if self.is_person:
                print(prompt, end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
        except EOFError:
            return None
        except UnicodeDecodeError:
            raise OptionError("the input is not valid UTF-8") from None
        return line.removesuffix("\n") if line else None


def _remember(path: Path) -> None:
    """Line editing with a history that outlives the program, where Python was built with it."""
    try:
        readline = importlib.import_module("readline")
    except ImportError:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        readline.read_history_file(path)
    except OSError as error:
        log.info(f"no history is kept: {error}")
        return

    def write() -> None:
        try:
            readline.set_history_length(1000)
            readline.write_history_file(path)
        except OSError as error:
            log.info(f"the history was not written: {error}")

    importlib.import_module("atexit").register(write)
