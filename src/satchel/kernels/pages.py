"""Where keys and values lie: for one layer, in a page, kv head after kv head, each K then V.

K is [dim][slot], so that 16 slots' scores are one register; V is [slot][dim], in columns of 64
dims one after another, so that a pass over a column reads straight on. How a number is kept is a
Layout: floats of two bytes, or whole numbers (codes) and behind them their scales, [group][slot].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from satchel.base.dtypes import DType, bf16, f16, f32, i8, i32, u8
from satchel.kernels.cache_types import F16
from satchel.lang.ops import cast, round_i32
from satchel.lang.trace import (
    Row,
    V,
    absolute,
    concat,
    convert,
    full,
    index,
    maximum,
    minimum,
    select,
)

PAGE = 64
"""Slots of a page; part of the numerics: attention reduces a page at a time."""

COLUMN = 64
VECTORS = PAGE // 16
MOST = 65504.0
"""The largest f16; in every type it stands for what is larger, infinities too: a weight of 0 must
hide it."""

Pieces = list[tuple[int, V]]
"""A head: (first dim, lanes of f32), in any order."""


@dataclass(frozen=True)
class Layout(ABC):
    """How the keys, or the values, of one head lie in a page. `rotated`: see rotate.py."""

    bits: int
    rotated: bool = False

    def group(self, head_dim: int) -> int | None:  # noqa: ARG002
        """How many neighbouring dims of a token share a scale; None: there are no scales."""
        return None

    def lanes(self, head_dim: int) -> int:
        """Neighbours of a head's dims that are one register of values."""
        return math.gcd(head_dim, 16)

    def n_scales(self, head_dim: int) -> int:
        """Scales of one token."""
        group = self.group(head_dim)
        return head_dim // group if group else 0

    def codes_bytes(self, head_dim: int) -> int:
        return self.bits * head_dim * PAGE // 8

    def bytes(self, head_dim: int) -> int:
        """All of a head in a page."""
        return self.codes_bytes(head_dim) + self.n_scales(head_dim) * PAGE * bf16.bytes

    def column(self, dim: int, head_dim: int) -> tuple[int, int]:
        """Where the column of V that holds a dim begins, and its dims."""
        first = dim // COLUMN * COLUMN
        return self.codes_bytes(first), min(COLUMN, head_dim - first)

    def scales(self, side: Row, head_dim: int, group: Any, slot: Any) -> Row:
        """The scales of a group's slots, from `slot` on: bf16, as it has the range of an f32. Its
        roundings do no harm: codes are made for the scale that is kept."""
        at = self.codes_bytes(head_dim) + group * PAGE * bf16.bytes + slot * bf16.bytes
        return side.past(at, bf16)

    @abstractmethod
    def keys(self, side: Row, d: V, count: int) -> Iterator[list[V]]:
        """For each of `count` dims from d on: the page's 64 keys, 4 registers, without scales."""

    @abstractmethod
    def values(self, side: Row, head_dim: int, dim: int, slot: V) -> list[V]:
        """A slot's values of the column that begins at dim, without scales."""

    @abstractmethod
    def store_keys(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        """A token's keys to its slot."""

    @abstractmethod
    def store_values(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        """A token's values to its slot."""


@dataclass(frozen=True)
class Floats(Layout):
    """f16 or bf16."""

    bits: int = 16
    dtype: DType = f16

    def keys(self, side: Row, d: V, count: int) -> Iterator[list[V]]:
        for u in range(count):
            at = [d * (2 * PAGE) + self.key_offset(u, 16 * v) for v in range(VECTORS)]
            yield [cast(side.past(a, self.dtype).load(0, 16), f32) for a in at]

    def values(self, side: Row, head_dim: int, dim: int, slot: V) -> list[V]:
        begin, width = self.column(dim, head_dim)
        n = math.gcd(width, 16)
        at = [slot * (2 * width) + (begin + 2 * i) for i in range(0, width, n)]
        return [cast(side.past(a, self.dtype).load(0, n), f32) for a in at]

    def store_keys(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:  # noqa: ARG002
        for at, x in head:
            short = cast(finite(x), self.dtype)
            for i in range(x.lanes):
                side.past(self.key_offset(at + i, slot), self.dtype).store(short[i])

    def store_values(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        for at, x in head:
            place = side.past(self.value_offset(at, slot, head_dim), self.dtype)
            place.store(cast(finite(x), self.dtype))

    def key_offset(self, dim: Any, slot: Any) -> Any:
        """Bytes to K[dim][slot]."""
        return slot * 2 + dim * PAGE * 2

    def value_offset(self, dim: int, slot: Any, head_dim: int) -> Any:
        """Bytes to V[slot][dim]."""
        begin, width = self.column(dim, head_dim)
        return slot * (2 * width) + (begin + 2 * (dim % COLUMN))


@dataclass(frozen=True)
class Int8(Layout):
    """-127 .. 127, and one scale for a head's token."""

    bits: int = 8

    def group(self, head_dim: int) -> int:
        return head_dim

    def keys(self, side: Row, d: V, count: int) -> Iterator[list[V]]:
        for u in range(count):
            at = [d * PAGE + (u * PAGE + 16 * v) for v in range(VECTORS)]
            yield [convert(side.past(a, i8).load(0, 16), f32) for a in at]

    def values(self, side: Row, head_dim: int, dim: int, slot: V) -> list[V]:
        begin, width = self.column(dim, head_dim)
        n = math.gcd(width, 16)
        at = [slot * width + (begin + i) for i in range(0, width, n)]
        return [convert(side.past(a, i8).load(0, n), f32) for a in at]

    def store_keys(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        for at, x in self._codes(side, head_dim, head, slot):
            for i in range(x.lanes):
                side.past(slot + (at + i) * PAGE, i8).store(x[i])

    def store_values(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        for at, x in self._codes(side, head_dim, head, slot):
            begin, width = self.column(at, head_dim)
            side.past(slot * width + (begin + at % COLUMN), i8).store(x)

    def _codes(self, side: Row, head_dim: int, head: Pieces, slot: V) -> Pieces:
        """A token's codes; its scale is kept."""
        x = [finite(v) for v in registers(head, self.lanes(head_dim))]
        largest = absolute(x[0])
        for v in x[1:]:
            largest = maximum(largest, absolute(v))
        inverse = keep_scale(self.scales(side, head_dim, 0, slot), largest.top() * (1 / 127), x)
        codes = [convert(round_i32(v * inverse), i8) for v in x]
        return [(i * v.lanes, v) for i, v in enumerate(codes)]


@dataclass(frozen=True)
class Int4(Layout):
    """-8 .. 7, and a scale for each 32 dims of a token, which makes -8 of the number farthest from
    zero. K's bytes hold two neighbouring dims of a slot, the lower one below; V's hold a dim of a
    group's first half below, one of its second half above. So no two tokens share a byte.
    """

    bits: int = 4

    def group(self, head_dim: int) -> int:
        return math.gcd(head_dim, 32)

    def lanes(self, head_dim: int) -> int:
        return self.group(head_dim) // 2

    def keys(self, side: Row, d: V, count: int) -> Iterator[list[V]]:
        for u in range(0, count, 2):
            at = [d * (PAGE // 2) + (u * (PAGE // 2) + 16 * v) for v in range(VECTORS)]
            halves = [nibbles(side.past(a, i8).load(0, 16)) for a in at]
            yield [low for low, _ in halves]
            yield [high for _, high in halves]

    def values(self, side: Row, head_dim: int, dim: int, slot: V) -> list[V]:
        (begin, width), n = self.column(dim, head_dim), self.lanes(head_dim)
        at = [slot * (width // 2) + (begin + i) for i in range(0, width // 2, n)]
        return [half for a in at for half in nibbles(side.past(a, i8).load(0, n))]

    def store_keys(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        for at, x in self._codes(side, head_dim, head, slot):
            both = packed(x[0::2], x[1::2])
            for i in range(x.lanes // 2):
                side.past(slot + (at // 2 + i) * PAGE, u8).store(both[i])

    def store_values(self, side: Row, head_dim: int, head: Pieces, slot: V) -> None:
        group = self.group(head_dim)
        for at, x in self._codes(side, head_dim, head, slot):
            begin, width = self.column(at, head_dim)
            place = side.past(slot * (width // 2) + (begin + at % COLUMN // 2), u8)
            place.store(packed(x[: group // 2], x[group // 2 :]))

    def _codes(self, side: Row, head_dim: int, head: Pieces, slot: V) -> Pieces:
        """A token's codes, i32, a group each; the scales are kept."""
        x = [finite(v) for v in registers(head, self.lanes(head_dim))]
        found: Pieces = []
        for g in range(len(x) // 2):
            both = x[2 * g : 2 * g + 2]
            high, low = maximum(*both).top(), minimum(*both)
            below = (low * -1.0).top()
            farthest = select(below > high, below * (1 / 8), high * (-1 / 8))
            inverse = keep_scale(self.scales(side, head_dim, g, slot), farthest, both)
            codes = round_i32(concat(*both) * inverse)
            codes = minimum(maximum(codes, -8), 7)
            found.append((g * codes.lanes, codes))
        return found


LAYOUTS: dict[str, Layout] = {
    F16: Floats(),
    "bf16": Floats(dtype=bf16),
    "int8": Int8(),
    "int4": Int4(),
    "int4-rot": Int4(rotated=True),
}

LEAST = 1e-30
"""Scales are at least this, so that there is a number to multiply by instead of dividing."""


def keep_scale(place: Row, scale: V, x: list[V]) -> V:
    """Put a scale into its place; the inverse of what stands there. A NaN among x makes it one."""
    tainted = x[0] * 0.0
    for v in x[1:]:
        tainted = tainted + v * 0.0
    size = maximum(full(f32, LEAST, 1), absolute(scale))
    scale = select(scale < 0.0, size * -1.0, size)
    kept = cast(scale + tainted.sum(), bf16)
    place.store(kept)
    return 1.0 / cast(kept, f32)


def nibbles(x: V) -> tuple[V, V]:
    """The lower and the upper halves of bytes, as floats of -8 .. 7."""
    wide = convert(x, i32)
    return convert((wide << 28) >> 28, f32), convert(wide >> 4, f32)


def packed(low: V, high: V) -> V:
    """Two codes a byte."""
    return convert((low & 15) | (high << 4), u8)


def registers(head: Pieces, n: int) -> list[V]:
    """A head in registers of n lanes, in the order of its dims."""
    step = math.gcd(n, *(x.lanes for _, x in head))
    cut = {at + i: x[i : i + step] for at, x in head for i in range(0, x.lanes, step)}
    parts = [cut[at] for at in sorted(cut)]
    return [concat(*parts[i : i + n // step]) for i in range(0, len(parts), n // step)]


def finite(x: V) -> V:
    """x, infinities and what is larger than MOST as that."""
    low, high = full(f32, -MOST, x.lanes), full(f32, MOST, x.lanes)
    return minimum(high, maximum(low, x))  # in this order a NaN stays one


@dataclass(frozen=True)
class Head:
    """How one kv head lies in a page: K, then V."""

    keys: Layout
    values: Layout
    head_dim: int

    @property
    def bytes(self) -> int:
        return self.keys.bytes(self.head_dim) + self.values.bytes(self.head_dim)

    def values_of(self, head: Row) -> Row:
        """Where a head's values begin."""
        return head.past(self.keys.bytes(self.head_dim))


def head_of(types: tuple[str, str], head_dim: int) -> Head:
    """By the names of the types of K and V."""
    return Head(LAYOUTS[types[0]], LAYOUTS[types[1]], head_dim)


def page_bytes(n_kv: int, head_dim: int, types: tuple[str, str] = (F16, F16)) -> int:
    """All kv heads of one layer in a page."""
    return n_kv * head_of(types, head_dim).bytes


def page_address(kv: Row, tables: Row, sequence: V, position: V, max_pages: V, n_bytes: int) -> Row:
    """The page of a sequence's position; n_bytes: of a page of this layer."""
    return kv.past(index(tables[sequence * max_pages + position // PAGE]) * n_bytes)
