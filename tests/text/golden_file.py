"""Lists of ids as text: compact enough to lie in the repository."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence

import numpy as np


def pack(lists: Sequence[Sequence[int]]) -> str:
    """The lengths and all ids, 32 bits each, compressed, in base 64."""
    flat = [len(lists), *map(len, lists), *(i for ids in lists for i in ids)]
    return base64.b64encode(zlib.compress(np.array(flat, "<u4").tobytes(), 9)).decode()


def unpack(text: str) -> list[list[int]]:
    """The lists that `pack` was given."""
    flat = np.frombuffer(zlib.decompress(base64.b64decode(text)), "<u4").tolist()
    n, ends = flat[0], np.cumsum(flat[1 : flat[0] + 1]).tolist()
    ids = flat[n + 1 :]
    return [ids[start:end] for start, end in zip([0, *ends], ends, strict=False)]
