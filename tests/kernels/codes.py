"""Activations as codes, by numpy in float32: the same bits as the kernel's."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from satchel.kernels.quantize import BLOCK_BYTES, CODES, MINUS_SUMS, SCALE, SCALED_SUMS

Floats = NDArray[np.float32]
F = np.float32


def codes_of(x: Floats, digits: int = 1) -> NDArray[np.uint8]:
    """Rows x [n, 32 k] as blocks: [n, digits, k, 64]; the bytes without meaning are zero."""
    blocks = x.reshape(len(x), -1, CODES)
    d = np.abs(blocks).max(-1, keepdims=True) * F(1 / 127)
    with np.errstate(all="ignore"):
        inverse = np.where(d > F(1e-35), F(1) / d, F(0))
    scaled = blocks * inverse
    codes = np.rint(scaled)
    rows = [(codes, d)]
    if digits == 2:
        rows.append((np.rint((scaled - codes) * F(254)), d * F(1 / 254)))
    return np.stack([block_bytes(*row) for row in rows], 1)


def passes(n: int, widths: tuple[int, ...]) -> list[slice]:
    """How a product takes n rows."""
    found: list[slice] = []
    for width in widths:
        while found[-1].stop + width <= n if found else width <= n:
            begin = found[-1].stop if found else 0
            found.append(slice(begin, begin + width))
    return found


def by_passes(codes: NDArray[np.uint8], widths: tuple[int, ...]) -> NDArray[np.uint8]:
    """Blocks [n, digits, k, 64] in the order of memory: of each pass, the first blocks of all its
    rows, then the second ones ...
    """
    found = [codes[p].transpose(2, 0, 1, 3).ravel() for p in passes(len(codes), widths)]
    return np.concatenate(found)


def by_rows(
    memory: NDArray[np.uint8], like: NDArray[np.uint8], widths: tuple[int, ...]
) -> NDArray[np.uint8]:
    """The reverse of `by_passes`, in the shape of `like`."""
    out, at = np.empty_like(like), 0
    for p in passes(len(like), widths):
        part = out[p].transpose(2, 0, 1, 3)
        part[...] = memory[at : at + part.size].reshape(part.shape)
        at += part.size
    return out


def block_bytes(codes: Floats, d: Floats) -> NDArray[np.uint8]:
    """Codes [..., 32] and scales [..., 1] with their sums, as bytes [..., 64]."""
    out = np.zeros((*codes.shape[:-1], BLOCK_BYTES), np.uint8)
    whole = codes.astype(np.int32)
    halves = whole.reshape(*whole.shape[:-1], 2, CODES // 2).sum(-1, dtype=np.int32)
    sums = np.concatenate([halves, halves.sum(-1, keepdims=True, dtype=np.int32)], -1)

    def put(at: int, x: NDArray[Any]) -> None:
        out[..., at : at + x.shape[-1] * x.itemsize] = np.ascontiguousarray(x).view(np.uint8)

    put(0, whole.astype(np.int8))
    put(SCALE, d)
    put(MINUS_SUMS, -sums)
    put(SCALED_SUMS, d * sums.astype(F))
    return out


def worth(codes: NDArray[np.uint8]) -> NDArray[np.float64]:
    """What blocks [n, digits, k, 64] stand for: [n, 32 k]."""
    values = np.ascontiguousarray(codes[..., :CODES]).view(np.int8).astype(np.float64)
    d = np.ascontiguousarray(codes[..., SCALE : SCALE + 4]).view(np.float32).astype(np.float64)
    return (values * d).sum(1).reshape(len(codes), -1)
