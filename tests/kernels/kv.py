"""Pages of keys and values of one layer, by numpy: a second description of where things lie."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from satchel.kernels.pages import PAGE, page_bytes

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
COLUMN = 64
F16 = ("f16", "f16")
BITS = {"f16": 16, "bf16": 16, "int8": 8, "int4": 4, "int4-rot": 4}
TYPES = [(k, v) for k in BITS for v in BITS]


def hadamard(x: Floats, kind: str) -> Floats:
    """The last axis rotated, where the type says so; in parts whose size is a power of two."""
    if not kind.endswith("-rot"):
        return x
    n = x.shape[-1] & -x.shape[-1]
    matrix = np.ones((1, 1))
    while len(matrix) < n:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    parts = x.reshape(*x.shape[:-1], -1, n).astype(np.float64) @ matrix / n**0.5
    return parts.reshape(x.shape).astype(x.dtype)


class Side:
    """Where the keys (which: 0), or the values (1), of a head are, in bytes from its beginning."""

    def __init__(self, which: int, types: tuple[str, str], head_dim: int) -> None:
        self.kind, self.head_dim, bits = types[which], head_dim, BITS[types[which]]
        self.group = {16: 0, 8: head_dim, 4: math.gcd(head_dim, 32)}[bits]
        dims = np.arange(head_dim)[:, None]
        self.begin = Side(0, types, head_dim).end if which else 0
        self.scales = self.begin + bits * head_dim * PAGE // 8
        n_scales = head_dim // self.group if self.group else 0
        self.end = self.scales + 2 * PAGE * n_scales
        self.codes, self.shifts = self._keys(dims) if which == 0 else self._values(dims)

    def _keys(self, dims: Ints) -> tuple[Ints, Ints]:
        slots, bits = np.arange(PAGE)[None], BITS[self.kind]
        if bits == 4:
            return dims // 2 * PAGE + slots, dims % 2 * 4
        return bits // 8 * (dims * PAGE + slots), dims * 0

    def _values(self, dims: Ints) -> tuple[Ints, Ints]:
        slots, bits = np.arange(PAGE)[None], BITS[self.kind]
        first, at = dims // COLUMN * COLUMN, dims % COLUMN
        width = np.minimum(COLUMN, self.head_dim - first)
        begin = self.begin + bits * first * PAGE // 8
        if bits == 4:
            half = self.group // 2
            inside = at // self.group * half + at % half
            return begin + slots * (width // 2) + inside, at % self.group // half * 4
        return begin + bits // 8 * (slots * width + at), dims * 0

    def bytes_of(self, slot: int) -> set[int]:
        """All bytes of a token."""
        found = {int(b) for b in self.codes[:, slot]}
        if not self.group:
            return found | {b + 1 for b in found}
        begins = self.scales + 2 * (PAGE * np.arange(self.head_dim // self.group) + slot)
        return found | {int(b) + i for b in begins for i in (0, 1)}

    def read(self, heads: NDArray[np.uint8], slot: int) -> Floats:
        """A token's numbers [kv heads, head_dim], as they were before a rotation."""
        codes = self.codes[:, slot]
        if not self.group:
            return floats(halves(heads, codes), self.kind)
        raw = (heads[:, codes] >> self.shifts[:, 0]).astype(np.uint8)
        wide = raw.astype(np.int8)
        small = wide if BITS[self.kind] == 8 else ((wide & 15) ^ 8) - 8
        places = self.scales + 2 * (PAGE * (np.arange(self.head_dim) // self.group) + slot)
        return hadamard(small * floats(halves(heads, places), "bf16"), self.kind)

    def write(self, heads: NDArray[np.uint8], slot: int, x: Floats) -> None:
        """Put a token's numbers there, rounded."""
        codes = self.codes[:, slot]
        if not self.group:
            short = x.astype(np.float16).view(np.uint16) if self.kind == "f16" else bf16_bits(x)
            heads[:, codes], heads[:, codes + 1] = short & 255, short >> 8
            return
        most = 127 if BITS[self.kind] == 8 else 7
        parts = hadamard(x, self.kind).reshape(len(x), -1, self.group)
        scales = floats(bf16_bits(np.abs(parts).max(axis=-1, keepdims=True) / most), "bf16")
        rounded = np.rint(parts / scales).astype(np.int8).view(np.uint8).reshape(x.shape)
        for dim, (code, shift) in enumerate(zip(codes, self.shifts[:, 0], strict=True)):
            mask = 255 if most == 127 else 15 << int(shift)
            heads[:, code] &= ~mask & 255
            heads[:, code] |= (rounded[:, dim] << shift & mask).astype(np.uint8)
        begins = self.scales + 2 * (PAGE * np.arange(parts.shape[1]) + slot)
        bits = bf16_bits(scales[..., 0])
        heads[:, begins], heads[:, begins + 1] = bits & 255, bits >> 8


def halves(heads: NDArray[np.uint8], places: Ints) -> NDArray[np.uint16]:
    """Words that begin at these bytes."""
    return heads[:, places] + 256 * heads[:, places + 1].astype(np.uint16)


def floats(bits: NDArray[np.uint16], kind: str) -> Floats:
    if kind == "f16":
        return bits.view(np.float16).astype(np.float32)
    return (bits.astype(np.uint32) << 16).view(np.float32)


def bf16_bits(x: Floats) -> NDArray[np.uint16]:
    """Rounded to the nearest, ties to even."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


class Pages:
    """uint8 [pages, kv heads, bytes of a head], full of garbage, as former sequences leave it:
    finite in f16, anything in the other types.
    """

    def __init__(
        self, n_pages: int, n_kv: int, head_dim: int, types: tuple[str, str] = F16
    ) -> None:
        self.head_dim, self.types = head_dim, types
        self.sides = [Side(which, types, head_dim) for which in (0, 1)]
        assert page_bytes(n_kv, head_dim, types) == n_kv * self.sides[1].end
        rng = np.random.default_rng(9)
        shape = (n_pages, n_kv, self.sides[1].end)
        if types == F16:
            garbage = rng.standard_normal((*shape[:2], shape[2] // 2)) * 300
            self.bytes = garbage.astype(np.float16).view(np.uint8)
        else:
            self.bytes = rng.integers(0, 256, shape, np.uint8)

    @property
    def halves(self) -> NDArray[np.float16]:
        """All as f16."""
        return self.bytes.view(np.float16)

    def put(self, table: NDArray[np.int32], position: int, k: Floats, v: Floats) -> None:
        """Write a token's k and v [kv heads, head_dim]."""
        page, slot = table[position // PAGE], position % PAGE
        for side, x in zip(self.sides, (k, v), strict=True):
            side.write(self.bytes[page], slot, x)

    def get(self, table: NDArray[np.int32], position: int) -> tuple[Floats, Floats]:
        """A token's k and v."""
        page, slot = table[position // PAGE], position % PAGE
        k, v = (side.read(self.bytes[page], slot) for side in self.sides)
        return k, v
