"""What a person should know while Satchel works, on stderr; answers alone go to stdout.

The library says nothing below a warning unless SATCHEL_LOG asks for it. `Progress` is the one line
that moves, and only on a terminal.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from satchel.base.options import LOG_LEVELS, options

_heard: list[Callable[[str, str], None]] = []  # the last one is told, in the place of stderr


def debug(message: str) -> None:
    """Writes what helps to find a fault."""
    _write("debug", message)


def info(message: str) -> None:
    """Writes what is going on."""
    _write("info", message)


def warning(message: str) -> None:
    """Writes what the user should look at, though the work goes on."""
    _write("warning", message)


def note(message: str) -> None:
    """Writes a line whatever the level: a licence, a choice made for the user, a timing."""
    if _heard:
        _heard[-1]("note", message)
    else:
        line(message)


@contextmanager
def told(listener: Callable[[str, str], None]) -> Generator[None]:
    """Meanwhile, whatever would be written goes to `listener`, as its level ("note" has none) and
    message, from any thread.
    """
    _heard.append(listener)
    try:
        yield
    finally:
        _heard.remove(listener)


def _write(level: str, message: str) -> None:
    if LOG_LEVELS.index(level) < LOG_LEVELS.index(options().log):
        return
    if _heard:
        _heard[-1](level, message)
    else:
        line(f"satchel: {level}: {message}")


def line(text: str) -> None:
    """Writes a line to stderr, whoever else is told."""
    # a program without a console has no stderr at all
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        print(text, file=sys.stderr, flush=True)


class Progress:
    """A bar for something that counts bytes: a title, how far, how fast, how long still.

    Drawn on a terminal only; elsewhere a single line says what is being done. `report`, if given,
    is told of every step too: the bytes done, never more than the total, and the total.
    """

    WIDTH = 28
    PERIOD_S = 0.1

    def __init__(
        self,
        title: str,
        total: int | None,
        report: Callable[[int, int | None], None] | None = None,
    ) -> None:
        """`total` in bytes, None when nobody knows it."""
        self.title, self.total, self.report = title, total, report
        self.start = time.monotonic()
        self.drawn_at = 0.0
        self.on_terminal = sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]
        if not self.on_terminal:
            note(f"{title}{f' ({size(total)})' if total else ''}")

    def update(self, done: int) -> None:
        """Shows that `done` bytes of the total are there."""
        if self.report:
            self.report(done if self.total is None else min(done, self.total), self.total)
        now = time.monotonic()
        if self.on_terminal and now - self.drawn_at >= self.PERIOD_S:
            self.drawn_at = now
            sys.stderr.write("\r\x1b[K" + self.line(done, now - self.start))
            sys.stderr.flush()

    def line(self, done: int, seconds: float) -> str:
        """The bar as text, after `seconds` of work."""
        rate = done / seconds if seconds > 0 else 0.0
        if not self.total:
            return f"{self.title}  {size(done)}  {size(rate)}/s"
        part = min(1.0, done / self.total)
        filled = int(part * self.WIDTH)
        left = f"  {(self.total - done) / rate:.0f} s left" if rate and done < self.total else ""
        bar = "#" * filled + "." * (self.WIDTH - filled)
        return f"{self.title}  [{bar}] {part:4.0%}  {size(done)} of {size(self.total)}{left}"

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Takes the bar away, however the work ended."""
        if self.on_terminal:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


def size(n_bytes: float) -> str:
    """Bytes for people, in decimal units: 98_362_432 is "98.4 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(n_bytes) < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB"
