"""What a machine can do at most: bytes read, and 8-bit multiply-adds. The yardsticks of every benchmark."""

from __future__ import annotations

from satchel.base.dtypes import i8, i32, u8
from satchel.lang.kernel import kernel
from satchel.lang.ops import dot4
from satchel.lang.trace import In, Out, acc, full, loop, size

CHAINS = 12
"""Independent sums: enough to hide the latency of a dot product."""

DOTS = 64
"""Multiply-adds of one dot4 over 16 lanes."""


@kernel
def read_all(lo: size, hi: size, out: Out[i32], x: In[u8], tile_bytes: size):
    """Tile t reads its tile_bytes (a multiple of 256) of x, and leaves their exclusive or in out[16 t ..]."""
    for t in loop(lo, hi):
        chains = [acc(i32) for _ in range(4)]
        for at in loop(0, tile_bytes, 256):
            line = x.past(t * tile_bytes + at, i32)
            for k, chain in enumerate(chains):
                chain.value = chain.value ^ line.load(16 * k, 16)
        a, b, c, d = (chain.value for chain in chains)
        out.store(a ^ b ^ c ^ d, t * 16)


@kernel
def multiply_all(lo: size, hi: size, out: Out[i32], x: In[u8], n: size):
    """Tile t multiplies 64 bytes of x with 64 others, CHAINS times a round, n rounds, all from registers."""
    for t in loop(lo, hi):
        chains = [acc(i32) for _ in range(CHAINS)]
        a, b = x.load(0, 64) & 127, x.load(64, 64).bits(i8)
        for _ in loop(n):
            for chain in chains:
                chain.value = dot4(chain.value, a, b, top=127)
        total = full(i32, 0)
        for chain in chains:
            total = total + chain.value
        out.store(total, t * 16)
