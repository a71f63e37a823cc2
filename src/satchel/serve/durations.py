"""How long, as Ollama's clients write it: "5m", "1h30m", 300; negative means for ever."""

from __future__ import annotations

import math
import re

from satchel.base.errors import OptionError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = r"(\d+(?:\.\d+)?)(ms|s|m|h)"


def parse_duration(given: str | float) -> float | None:
    """Seconds; None for ever. Raises OptionError."""
    if isinstance(given, str):
        text = given.strip()[:50]
        sign = -1 if text.startswith("-") else 1
        text = text.removeprefix("-")
        if re.fullmatch(rf"(?:{_PART})+", text, re.ASCII):
            seconds = sum(float(n) * _UNITS[unit] for n, unit in re.findall(_PART, text))
        elif re.fullmatch(r"\d+(?:\.\d+)?", text, re.ASCII):
            seconds = float(text)
        else:
            raise OptionError(f'keep_alive: {given[:50]!r} is no duration, as "5m" or 300 are')
        seconds *= sign
    else:
        seconds = float(given)
    if seconds < 0:
        return None
    if not math.isfinite(seconds) or seconds > 1e9:
        raise OptionError("keep_alive: this is longer than 30 years; -1 means for ever")
    return seconds
