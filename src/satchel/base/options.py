"""What the environment asks for. The only module that reads the environment.

Every flag of the command line has a twin here: `--ctx-size` is SATCHEL_CTX_SIZE. An argument beats
its variable, a variable beats the default, and a value that makes no sense is an error naming it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from satchel.base.errors import OptionError

T = TypeVar("T")

PREFIX = "SATCHEL_"
_PACKED_LIMIT = 20 << 30
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True)
class Options:
    """The settings that hold for the whole process."""

    cache_dir: Path  # SATCHEL_CACHE: models and compiled kernels; can be deleted at any time
    threads: int | None  # SATCHEL_THREADS: workers; None leaves the choice to the machine
    target: str | None  # SATCHEL_TARGET: generate code for this target instead of this machine's
    offline: bool  # SATCHEL_OFFLINE: never fetch anything
    packed_limit: int  # SATCHEL_PACKED_LIMIT: bytes of packed weights that the cache keeps
    log: str  # SATCHEL_LOG: the least level that is written, one of LOG_LEVELS
    hf_hub: Path  # where huggingface_hub keeps its downloads: HF_HUB_CACHE, or HF_HOME/hub


def options() -> Options:
    """The settings as the environment has them now.

    Raises OptionError, naming the variable, for a value that makes no sense.
    """
    limit = variable("PACKED_LIMIT", n_bytes)
    return Options(
        cache_dir=variable("CACHE", folder) or _user_cache() / "satchel",
        threads=variable("THREADS", count),
        target=variable("TARGET", str),
        offline=variable("OFFLINE", switch) or False,
        packed_limit=_PACKED_LIMIT if limit is None else limit,
        log=variable("LOG", log_level) or "warning",
        hf_hub=_hf_hub(),
    )


def variable(name: str, parse: Callable[[str], T]) -> T | None:
    """The value of SATCHEL_<name>, parsed; None when unset or empty.

    `parse` raises ValueError with a text like "is not a whole number". Raises OptionError.
    """
    text = os.environ.get(PREFIX + name, "")
    if not text:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise OptionError(f"{PREFIX}{name}={text!r} {error}") from None


def data_dir() -> Path:
    """SATCHEL_DATA: where conversations are that were given a name. Raises OptionError."""
    if found := variable("DATA", folder):
        return found
    if xdg := os.environ.get("XDG_DATA_HOME"):
        return Path(xdg) / "satchel"
    try:
        return Path.home() / ".local" / "share" / "satchel"
    except RuntimeError:
        raise OptionError("there is no home folder; set SATCHEL_DATA to a folder") from None


def variables() -> tuple[str, ...]:
    """The names, without the prefix, of all SATCHEL_* variables that are set."""
    return tuple(sorted(n.removeprefix(PREFIX) for n in os.environ if n.startswith(PREFIX)))


def child_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """The environment for a program that we start: ours with `changes`."""
    return {**os.environ, **changes}


def count(text: str) -> int:
    """Parses a whole number of one or more."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError("is not a whole number of 1 or more")
    return int(text)


def n_bytes(text: str) -> int:
    """Parses a number of bytes: 0, 512M, 1.5G, with or without a B or iB."""
    number = text.upper().removesuffix("B").removesuffix("I")
    power = "KMGT".find(number[-1:]) + 1 if number else 0
    digits = number[:-1] if power else number
    if not digits.isascii() or not re.fullmatch(r"\d{1,15}(\.\d{1,6})?", digits):
        raise ValueError("is no number of bytes like 512M or 1.5G")
    return int(float(digits) * (1 << 10 * power)) if "." in digits else int(digits) << 10 * power


def switch(text: str) -> bool:
    """Parses yes or no, in the spellings that people use."""
    word = text.lower()
    if word in ("1", "yes", "true", "on"):
        return True
    if word in ("0", "no", "false", "off"):
        return False
    raise ValueError("is neither 1 nor 0")


def folder(text: str) -> Path:
    """Parses a folder's path, `~` included; it need not exist."""
    path = Path(text).expanduser()
    if path.exists() and not path.is_dir():
        raise ValueError("is not a folder")
    return path


def log_level(text: str) -> str:
    """Parses one of LOG_LEVELS."""
    if text.lower() not in LOG_LEVELS:
        raise ValueError(f"is none of {', '.join(LOG_LEVELS)}")
    return text.lower()


def _user_cache() -> Path:
    if xdg := os.environ.get("XDG_CACHE_HOME"):
        return Path(xdg)
    try:
        return Path.home() / ".cache"
    except RuntimeError:
        raise OptionError("there is no home folder; set SATCHEL_CACHE to a folder") from None


def _hf_hub() -> Path:
    if hub := os.environ.get("HF_HUB_CACHE"):
        return Path(hub).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    return _user_cache() / "huggingface" / "hub"
