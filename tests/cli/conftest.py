"""A fake model in the place of the real one, and a command line to call."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.cli.fakes import FakeLLM

import satchel
from satchel.cli.main import main


@dataclass
class Outcome:
    code: int
    out: str
    err: str


Call = Callable[..., Outcome]


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLLM:
    """The model that `satchel.load` gives; the cache is an empty folder."""
    fake = FakeLLM()
    monkeypatch.setitem(vars(satchel), "load", fake.open)
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return fake


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command line with `stdin` as its input."""

    def run(*argv: str, stdin: bytes = b"") -> Outcome:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"))
        code = main(argv)
        said = capsys.readouterr()
        return Outcome(code, said.out, said.err)

    return run
