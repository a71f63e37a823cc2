"""The log on stderr, sizes for people, and the bar."""

from __future__ import annotations

import io
import sys

import pytest

from satchel.base import log


def test_levels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SATCHEL_LOG", raising=False)
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.note("d")
    assert capsys.readouterr() == ("", "satchel: warning: c\nd\n")
    monkeypatch.setenv("SATCHEL_LOG", "debug")
    log.debug("a")
    assert capsys.readouterr().err == "satchel: debug: a\n"
    monkeypatch.setenv("SATCHEL_LOG", "error")
    log.warning("c")
    assert capsys.readouterr().err == ""


def test_without_a_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    log.warning("nobody reads this")
    with log.Progress("fetching", 10) as bar:
        bar.update(5)


@pytest.mark.parametrize(
    ("n", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (98_362_432, "98.4 MB"), (999_950, "1 MB"),
     (25_300_000_000, "25.3 GB"), (3e15, "3e+03 TB")],
)  # fmt: skip
def test_sizes(n: float, text: str) -> None:
    assert log.size(n) == text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_moves_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for stream, drawn in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with log.Progress("fetching m", 1000) as bar:
            bar.update(500)
        assert ("50%" in stream.getvalue()) == drawn
        assert ("\r" in stream.getvalue()) == drawn
    assert stream.getvalue() == "fetching m (1 kB)\n"


def test_what_a_bar_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    line = log.Progress("m", 4_000_000).line(1_000_000, 2.0)
    assert line == "m  [#######.....................]  25%  1 MB of 4 MB  6 s left"
    assert log.Progress("m", None).line(1_000_000, 2.0) == "m  1 MB  500 kB/s"
