"""The Walsh-Hadamard transform of a head: it spreads each dim over all, so that a few large ones
make no coarse scale for the rest. Turned alike, q and k have the product they had.
"""

from __future__ import annotations

from satchel.base.dtypes import f32
from satchel.lang.ops import muladd
from satchel.lang.trace import V, table


def rotated(x: list[V]) -> list[V]:
    """A head, in registers of equal lanes, rotated; twice gives the head again.

    Heads whose dims are no power of two are rotated in parts that are: of 96 dims, 32 at a time.
    """
    n = x[0].lanes
    dims = n * len(x)
    size = dims & -dims
    h = 1
    while h < min(n, size):
        signs = table(f32, [-1.0 if i & h else 1.0 for i in range(n)])
        partners = [i ^ h for i in range(n)]
        x = [muladd(v, signs, v.shuffle(partners)) for v in x]
        h *= 2
    while h < size:
        apart = h // n
        x = [x[i - apart] - x[i] if i & apart else x[i] + x[i + apart] for i in range(len(x))]
        h *= 2
    return [v * size**-0.5 for v in x]
