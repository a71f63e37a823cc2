"""The scalar types of weights, activations and kernels, and arrays of them as fields of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class DType:
    """A scalar type: `kind` is "i" (signed), "u" (unsigned) or "f" (floating)."""

    name: str
    kind: str
    bits: int

    @property
    def bytes(self) -> int:
        """The size of one element in memory, in bytes (a truth value takes one)."""
        return max(1, self.bits // 8)

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """numpy's type of the same bits; bf16, which numpy lacks, is carried as uint16."""
        import numpy as np

        return np.dtype(
            {"i1": "bool", "bf16": "uint16"}.get(self.name) or self.kind + str(self.bytes)
        )

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    def __mul__(self, count: int) -> Array:
        return Array(self, count)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Array:
    """`count` elements of one type, side by side: a field of a block."""

    dtype: DType
    count: int

    @property
    def bytes(self) -> int:
        return self.dtype.bytes * self.count


i1 = DType("i1", "u", 1)
i8, i16, i32, i64 = (DType(f"i{bits}", "i", bits) for bits in (8, 16, 32, 64))
u8, u16, u32 = (DType(f"u{bits}", "u", bits) for bits in (8, 16, 32))
f16, f32, f64 = (DType(f"f{bits}", "f", bits) for bits in (16, 32, 64))
bf16 = DType("bf16", "f", 16)

BY_NAME = {t.name: t for t in (i1, i8, i16, i32, i64, u8, u16, u32, f16, bf16, f32, f64)}
