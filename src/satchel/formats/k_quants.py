"""The k-quants: 256 weights in groups of 16 or 32, whose scales are themselves quantized.

Source: ggml's ggml-common.h and ggml-quants.c. Codes lie side by side in runs of 32 bytes: the
lowest bits of a run are one group (or two) of weights, the next bits the next.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel.base.dtypes import f16, i8, u8
from satchel.formats.block import Block, Bytes, Fields, Floats
from satchel.formats.legacy import wide


class Q2_K(Block, elements=256, bytes=84):  # noqa: N801
    """weight = d * scale * code - dmin * min; a byte of `scales` holds scale (low) and min."""

    type_id = 10
    groups = 16
    scales_and_mins = u8 * 16
    qs = u8 * 64
    d = f16
    dmin = f16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        _unpack_pairs(block["qs"], out)

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, Floats]:
        packed = block["scales_and_mins"]
        return _scaled(block["d"], packed & 15), -_scaled(block["dmin"], packed >> 4)


class Q3_K(Block, elements=256, bytes=110):  # noqa: N801
    """weight = d * (scale - 32) * (code - 4); the codes' third bits are in `hmask`.

    Scale i of 16 has 6 bits: nibble i of the first eight bytes (low nibbles first), and bit pair
    i of the last four (lowest pairs of all four bytes first).
    """

    type_id = 11
    groups = 16
    hmask = u8 * 32
    qs = u8 * 64
    packed_scales = u8 * 12
    d = f16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        low, high = np.empty(out.shape, np.uint8), np.empty(out.shape, np.uint8)
        _unpack_pairs(block["qs"], low)
        _unpack_bits(block["hmask"], high)
        out[:] = low | high << 2
        out -= 4

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, None]:
        scales = sixteen_sixes(block["packed_scales"]).view(np.int8)
        return _scaled(block["d"], scales - np.int8(32)), None


class Q4_K(Block, elements=256, bytes=144):  # noqa: N801
    """weight = d * scale * code - dmin * min, with 6-bit scales and mins."""

    type_id = 12
    groups = 8
    d = f16
    dmin = f16
    scales_and_mins = u8 * 12
    qs = u8 * 128

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        _unpack_nibble_runs(block["qs"], out, run=32)

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, Floats]:
        return _scales_and_mins(block)


class Q5_K(Block, elements=256, bytes=176):  # noqa: N801
    """As Q4_K, with the fifth bits of group i in the bits i of `qh`."""

    type_id = 13
    groups = 8
    d = f16
    dmin = f16
    scales_and_mins = u8 * 12
    qh = u8 * 32
    qs = u8 * 128

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        low, high = np.empty(out.shape, np.uint8), np.empty(out.shape, np.uint8)
        _unpack_nibble_runs(block["qs"], low, run=32)
        _unpack_bits(block["qh"], high)
        out[:] = low | high << 4

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, Floats]:
        return _scales_and_mins(block)


class Q6_K(Block, elements=256, bytes=210):  # noqa: N801
    """weight = d * scale * (code - 32): low nibbles in `ql`, upper pairs in `qh`."""

    type_id = 14
    groups = 16
    ql = u8 * 128
    qh = u8 * 64
    group_scales = i8 * 16
    d = f16

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:
        low, high = np.empty(out.shape, np.uint8), np.empty(out.shape, np.uint8)
        _unpack_nibble_runs(block["ql"], low, run=64)
        _unpack_pairs(block["qh"], high)
        out[:] = low | high << 4
        out -= 32

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, None]:
        return _scaled(block["d"], block["group_scales"]), None


def _scaled(d: NDArray[np.float16], scales: NDArray[Any]) -> Floats:
    """The block's scale [n] times those of its groups [n, groups]."""
    with np.errstate(all="ignore"):
        return wide(d) * scales.astype(np.float32)


def _scales_and_mins(block: Fields) -> tuple[Floats, Floats]:
    """The eight scales and (negated) mins of Q4_K and Q5_K."""
    scales, mins = eight_sixes(block["scales_and_mins"])
    return _scaled(block["d"], scales), -_scaled(block["dmin"], mins)


def eight_sixes(packed: Bytes) -> tuple[Bytes, Bytes]:
    """The 6-bit scales and mins, [..., 8] each, in the 12 bytes of Q4_K and Q5_K.

    Bytes 0..3 hold scales 0..3 and bytes 4..7 mins 0..3 in their low 6 bits. Of scales and mins
    4..7 the lower 4 bits are the nibbles of bytes 8..11, the upper 2 those left in bytes 0..7.
    """
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, third & 15 | first >> 2 & 48], -1, dtype=np.uint8)
    mins = np.concatenate([second & 63, third >> 4 | second >> 2 & 48], -1, dtype=np.uint8)
    return scales, mins


def sixteen_sixes(packed: Bytes) -> Bytes:
    """The 6-bit scales [..., 16], as scale + 32, in the 12 bytes of Q3_K."""
    low = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], -1, dtype=np.uint8)
    high = [packed[..., 8:] >> 2 * i & 3 for i in range(4)]
    return low | np.concatenate(high, -1, dtype=np.uint8) << np.uint8(4)


def _unpack_nibble_runs(packed: Bytes, out: NDArray[Any], run: int) -> None:
    """Of each run of bytes, first the low nibbles, then the high ones, into out [n, 256]."""
    runs, results = packed.reshape(len(out), -1, run), out.reshape(len(out), -1, 2, run)
    results[:, :, 0] = runs & 15
    results[:, :, 1] = runs >> 4


def _unpack_pairs(packed: Bytes, out: NDArray[Any]) -> None:
    """Of each 32 bytes, the four bit pairs, lowest first, into out [n, 256]."""
    runs, results = packed.reshape(-1, 2, 32), out.reshape(-1, 2, 4, 32)
    for i in range(4):
        results[:, :, i] = runs >> 2 * i & 3


def _unpack_bits(packed: Bytes, out: NDArray[Any]) -> None:
    """Of 32 bytes, the eight bits, lowest first, into out [n, 256]."""
    results = out.reshape(-1, 8, 32)
    for i in range(8):
        results[:, i] = packed >> i & 1
