"""Satchel, an on-device language-model engine that is Python all the way down.

    import satchel

    with satchel.load("smollm2") as llm:
        print(llm.generate("The sea is", max_tokens=20).text)

Importing this is cheap: everything but the errors is fetched from `satchel.api` when first named.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from satchel import errors

if TYPE_CHECKING:
    from satchel.api import (
        LLM,
        Completion,
        Options,
        Piece,
        Session,
        Stats,
        Stream,
        TokenLogprob,
        forecast,
        load,
    )

__all__ = [
    "LLM",
    "Completion",
    "Options",
    "Piece",
    "Session",
    "Stats",
    "Stream",
    "TokenLogprob",
    "errors",
    "forecast",
    "load",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("satchel")
    if name in __all__:
        return getattr(importlib.import_module("satchel.api"), name)
    raise AttributeError(f"module 'satchel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
