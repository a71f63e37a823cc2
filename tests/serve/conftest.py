"""Servers for tests: one with a fake model, one with a real one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.serve.served import Served, serving

import satchel


@pytest.fixture
def served() -> Iterator[Served]:
    """A server whose model says "Grüß dich, Welt.\\nUser:" to "Say:" and to any chat."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def shared() -> Iterator[Served]:
    """The same, for tests that leave nothing behind."""
    with serving() as running:
        yield running


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[Served]:
    """A server of SmolLM2."""

    def load(reference: str) -> satchel.LLM:
        return satchel.load(reference, context=1024, threads=2, parallel=8)

    with serving(load, [str(smollm2)]) as running:
        yield running
