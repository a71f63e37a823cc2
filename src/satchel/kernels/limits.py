"""What a machine can do at most, in bytes and multiply-adds: the yardsticks of all benchmarks."""

from __future__ import annotations

from satchel.base.dtypes import f32, i8, i32
from satchel.lang.kernel import kernel
from satchel.lang.ops import dot4, muladd
from satchel.lang.trace import In, Out, acc, full, loop, size

CHAINS = 12
"""Independent sums: enough to hide the latency of a dot product."""

DOTS = 64
"""Multiply-adds of one dot4 over 16 lanes."""


@kernel
def read_all(lo: size, hi: size, out: Out.i32, x: In.u8, tile_bytes: size):
    """Tile t leaves the exclusive or of its tile_bytes (256 n) of x in out[16 t ..]."""
    for t in loop(lo, hi):
        chains = [acc(i32) for _ in range(4)]
        for at in loop(0, tile_bytes, 256):
            line = x.past(t * tile_bytes + at, i32)
            for k, chain in enumerate(chains):
                chain.value = chain.value ^ line.load(16 * k, 16)
        a, b, c, d = (chain.value for chain in chains)
        out.store(a ^ b ^ c ^ d, t * 16)


@kernel
def multiply_all(lo: size, hi: size, out: Out.i32, x: In.u8, n: size):
    """Tile t multiplies 64 bytes by 64 others CHAINS times a round, n rounds, in registers."""
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


@kernel
def multiply_floats(lo: size, hi: size, out: Out.f32, x: In.f32, n: size):
    """Tile t multiplies 16 floats by 16 others CHAINS times a round, n rounds, in registers."""
    for t in loop(lo, hi):
        chains = [acc(f32) for _ in range(CHAINS)]
        a, b = x.load(0, 16), x.load(16, 16)
        for _ in loop(n):
            for chain in chains:
                chain.value = muladd(a, b, chain.value)
        total = full(f32, 0.0)
        for chain in chains:
            total = total + chain.value
        out.store(total, t * 16)
