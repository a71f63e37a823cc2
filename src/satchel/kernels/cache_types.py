"""The types that keys and values may be kept in, by name. How they lie is said in pages.py; apart
from it, as a warm start and a command line need no more than names.
"""

from __future__ import annotations

F16 = "f16"
SPELLINGS = {
    F16: F16, "bf16": "bf16", "int8": "int8", "q8_0": "int8", "int4": "int4", "q4_0": "int4",
    "int4-rot": "int4-rot",
}  # fmt: skip
"""What users may call them: ours, and the words of other engines for what is nearest."""

CACHE_TYPES = tuple(dict.fromkeys(SPELLINGS.values()))


def cache_type(name: str) -> str:
    """Our name of a type, by any of its spellings. Raises ValueError."""
    found = SPELLINGS.get(name)
    if found is None:
        raise ValueError(f"is none of {', '.join(CACHE_TYPES)}")
    return found
