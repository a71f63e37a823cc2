"""Fingerprints of our own source: what caches of things made by it are keyed with."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_CODE = ("lang", "lang/rules", "lang/print", "kernels", "formats", "base")
_PLANS = ("graph", "archs", "compiler", "runtime")


@cache
def source_digest() -> str:
    """Of all source that decides what a kernel's machine code is."""
    return _digest(_CODE)


@cache
def plan_digest() -> str:
    """Of all source that decides what a model's plan is, its kernels included."""
    return _digest((*_CODE, *_PLANS))


def _digest(rooms: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for room in rooms:
        for file in sorted((_ROOT / room).glob("*.py")):
            digest.update(file.name.encode() + file.read_bytes())
    return digest.hexdigest()
