"""Level 1: the formats that weights are stored in. Layout, decode and encode; nothing of speed.

A format is a `Block` class; `by_id` finds it by ggml's number, `by_name` by its name.
"""

from __future__ import annotations

from satchel.base.errors import UnsupportedError
from satchel.formats.block import Block, Bytes, Fields, Floats
from satchel.formats.k_quants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from satchel.formats.legacy import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from satchel.formats.plain import BF16, F16, F32

FORMATS: tuple[type[Block], ...] = (
    F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K,
)  # fmt: skip

_BY_ID = {block.type_id: block for block in FORMATS}
_BY_NAME = {block.name: block for block in FORMATS}

# What ggml calls the numbers that we do not read, so that an error can name them.
_OTHER_NAMES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL",
    21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4",
}  # fmt: skip


def by_id(type_id: int) -> type[Block]:
    """The format with ggml's number. Raises UnsupportedError, naming it, for any other."""
    block = _BY_ID.get(type_id)
    if block is None:
        name = _OTHER_NAMES.get(type_id, "unknown")
        raise UnsupportedError(f"block type {type_id} ({name}) is not supported; {_advice()}")
    return block


def by_name(name: str) -> type[Block]:
    """The format with this name, such as "Q4_K". Raises UnsupportedError for any other."""
    block = _BY_NAME.get(name)
    if block is None:
        raise UnsupportedError(f"block type {name!r} is not supported; {_advice()}")
    return block


def _advice() -> str:
    return f"use a file with {', '.join(_BY_NAME)}"


__all__ = [
    "BF16",
    "F16",
    "F32",
    "FORMATS",
    "Q2_K",
    "Q3_K",
    "Q4_0",
    "Q4_1",
    "Q4_K",
    "Q5_0",
    "Q5_1",
    "Q5_K",
    "Q6_K",
    "Q8_0",
    "Block",
    "Bytes",
    "Fields",
    "Floats",
    "by_id",
    "by_name",
]
