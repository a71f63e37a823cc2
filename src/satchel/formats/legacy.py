"""The formats of 32 weights under one scale. Source: ggml's ggml-common.h and ggml-quants.c.

In Q4 and Q5 the low nibbles of the 16 bytes `qs` are weights 0..15, the high ones 16..31; bit i of
`qh` is the fifth bit of weight i.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel.base.dtypes import f16, i8, u8
from satchel.base.errors import UnsupportedError
from satchel.formats.block import Block, Bytes, Fields, Floats


class Q4_0(Block, elements=32, bytes=18):  # noqa: N801
    """weight = d * (code - 8)."""

    type_id = 2
    d = f16
    qs = u8 * 16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        unpack_nibbles(block["qs"], out)
        out -= 8

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, None]:
        return wide(block["d"]), None

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        d, codes = _signed_codes(cls, x, 8)
        store_half(block["d"], d)
        block["qs"][:] = _pack_nibbles(codes)


class Q4_1(Block, elements=32, bytes=20):  # noqa: N801
    """weight = d * code + m."""

    type_id = 3
    d = f16
    m = f16
    qs = u8 * 16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        unpack_nibbles(block["qs"], out)

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, Floats]:
        return wide(block["d"]), wide(block["m"])

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        d, m, codes = _ranged_codes(cls, x, 15)
        store_half(block["d"], d)
        store_half(block["m"], m)
        block["qs"][:] = _pack_nibbles(codes)


class Q5_0(Block, elements=32, bytes=22):  # noqa: N801
    """weight = d * (code - 16)."""

    type_id = 6
    d = f16
    qh = u8 * 4
    qs = u8 * 16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        _unpack_fives(block, out)
        out -= 16

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, None]:
        return wide(block["d"]), None

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        d, codes = _signed_codes(cls, x, 16)
        store_half(block["d"], d)
        block["qs"][:] = _pack_nibbles(codes)
        block["qh"][:] = np.packbits(codes >> 4, axis=-1, bitorder="little")


class Q5_1(Block, elements=32, bytes=24):  # noqa: N801
    """weight = d * code + m."""

    type_id = 7
    d = f16
    m = f16
    qh = u8 * 4
    qs = u8 * 16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        _unpack_fives(block, out)

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, Floats]:
        return wide(block["d"]), wide(block["m"])

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        d, m, codes = _ranged_codes(cls, x, 31)
        store_half(block["d"], d)
        store_half(block["m"], m)
        block["qs"][:] = _pack_nibbles(codes)
        block["qh"][:] = np.packbits(codes >> 4, axis=-1, bitorder="little")


class Q8_0(Block, elements=32, bytes=34):  # noqa: N801
    """weight = d * code, the code a signed byte."""

    type_id = 8
    d = f16
    qs = i8 * 32

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        out[:] = block["qs"]

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, None]:
        return wide(block["d"]), None

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:
        _check_finite(cls, x)
        d = np.abs(x).max(axis=-1, keepdims=True) / np.float32(127)
        codes = x * _inverse(d)
        store_half(block["d"], d)
        size = np.abs(codes)  # halves are rounded away from zero
        whole = np.floor(size)
        block["qs"][:] = np.copysign(whole + np.floor(2 * (size - whole)), codes)


# ---- shared by the formats of this file, and of the next


def wide(half: NDArray[np.float16]) -> Floats:
    """One scale a block, [n] halves, as [n, 1] 32-bit floats."""
    return half.astype(np.float32)[:, None]


def store_half(field: NDArray[np.float16], value: Floats) -> None:
    """Round [n, 1] scales into a field of halves; what is too large for one is infinite."""
    with np.errstate(all="ignore"):
        field[:] = value[:, 0]


def unpack_nibbles(qs: Bytes, out: NDArray[Any]) -> None:
    """The low nibbles of qs [n, 16] into the first half of out [n, 32], the high ones after."""
    out[:, :16] = qs & 15
    out[:, 16:] = qs >> 4


def _unpack_fives(block: Fields, out: NDArray[Any]) -> None:
    high = np.unpackbits(block["qh"], axis=-1, bitorder="little") << 4
    out[:, :16] = block["qs"] & 15 | high[:, :16]
    out[:, 16:] = block["qs"] >> 4 | high[:, 16:]


def _pack_nibbles(codes: Bytes) -> Bytes:
    low, high = codes[:, :16], codes[:, 16:]
    return (low & np.uint8(15)) | (high << np.uint8(4))


def _check_finite(cls: type[Block], x: Floats) -> None:
    if not np.isfinite(x).all():
        raise UnsupportedError(f"infinite weights and NaNs can't be encoded as {cls.name}")


def _inverse(d: Floats) -> Floats:
    """1 / d, and 0 where that is not finite: such a d is 0 once it is rounded to a half."""
    with np.errstate(all="ignore"):
        inverse = 1 / d
    return np.where(np.isfinite(inverse), inverse, np.float32(0))


def _signed_codes(cls: type[Block], x: Floats, middle: int) -> tuple[Floats, Bytes]:
    """Scales and codes 0..2*middle-1; the weight farthest from zero gets code 0 exactly."""
    _check_finite(cls, x)
    farthest = np.take_along_axis(x, np.abs(x).argmax(axis=-1)[:, None], axis=-1)
    d = farthest / np.float32(-middle)
    codes = (x * _inverse(d) + np.float32(middle + 0.5)).astype(np.uint8)
    return d, codes.clip(0, 2 * middle - 1)


def _ranged_codes(cls: type[Block], x: Floats, top: int) -> tuple[Floats, Floats, Bytes]:
    """Scales, least weights and codes 0..top that spread from the least to the greatest."""
    _check_finite(cls, x)
    least = x.min(axis=-1, keepdims=True)
    with np.errstate(over="ignore"):
        d = (x.max(axis=-1, keepdims=True) - least) / np.float32(top)
        codes = (x - least) * _inverse(d) + np.float32(0.5)
    return d, least, codes.astype(np.uint8).clip(0, top)
