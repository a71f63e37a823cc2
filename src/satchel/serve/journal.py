"""The server's log: a line an event, with the request's id, and never a prompt or an answer."""

from __future__ import annotations

import json
import logging
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from satchel.base import log

request_id: ContextVar[str] = ContextVar("request_id", default="-")


class Journal:
    """Writes events as `name key=value ...`, or as JSON lines."""

    def __init__(self, as_json: bool = False, line: Callable[[str], None] = log.line) -> None:
        self.as_json = as_json
        self.line = line

    def write(self, event: str, **fields: Any) -> None:
        """One line: when, what, of which request, and the fields that are not None."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        found = {"time": now, "event": event, "request": request_id.get()} | {
            name: value for name, value in fields.items() if value is not None
        }
        if self.as_json:
            self.line(json.dumps(found))
        else:
            pairs = (f"{name}={_plain(value)}" for name, value in list(found.items())[2:])
            self.line(f"{now} {event} {' '.join(pairs)}")

    def hear(self, level: str, message: str) -> None:
        """What other rooms say, as an event of its level."""
        self.write(level, said=message)

    def fault(self, error: BaseException) -> None:
        """An error of ours: its type and where it arose; not its text, which may hold a prompt."""
        frames = traceback.extract_tb(error.__traceback__)
        where = " < ".join(f"{_module(f.filename)}:{f.lineno}" for f in reversed(frames[-6:]))
        self.write("fault", error=type(error).__name__, where=where)


def _plain(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return json.dumps(text) if not text or set(text) & set(' "\n=') else text


def _module(filename: str) -> str:
    return "/".join(filename.replace("\\", "/").split("/")[-2:])


class Forward(logging.Handler):
    """Hands what libraries log to the journal."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(logging.WARNING)
        self.journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """One event; of an exception only what `fault` tells."""
        if record.exc_info and record.exc_info[1]:
            self.journal.fault(record.exc_info[1])
        else:
            self.journal.write("http", said=record.getMessage())
