"""What a block is: a run of weights and their scales, described as fields at fixed places.

A format is a class, its fields in the order in which they lie in the file:

    class Q4_1(Block, elements=32, bytes=20):
        type_id = 3
        d = f16
        m = f16
        qs = u8 * 16

Every quantized format says weight = scale * code + offset, with small whole codes and one scale
(and perhaps one offset) for each group of weights. So a format gives its codes and its scales, and
decoding is written once, here. Byte order is little-endian throughout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from satchel.base.dtypes import Array, DType
from satchel.base.errors import FileFormatError, UnsupportedError

Bytes: TypeAlias = NDArray[np.uint8]
Floats: TypeAlias = NDArray[np.float32]
Fields: TypeAlias = Mapping[str, NDArray[Any]]

STRETCH = 1 << 16  # weights decoded at a time: what a stretch touches stays in the L2 cache


@dataclass(frozen=True)
class Field:
    """`count` scalars of `dtype`, `offset` bytes into the block; a lone scalar has count None."""

    name: str
    dtype: DType
    count: int | None
    offset: int

    @property
    def bytes(self) -> int:
        return self.dtype.bytes * (self.count or 1)


class Block:
    """The base of all formats; classes are used, never instances.

    `elements` weights take `bytes` bytes; `groups` runs of equally many weights have a scale each.
    `type_id` is ggml's number of the format, None for one that no file bears.
    """

    name: ClassVar[str]
    type_id: ClassVar[int | None] = None
    elements: ClassVar[int]
    bytes: ClassVar[int]
    groups: ClassVar[int] = 1
    layout: ClassVar[Mapping[str, Field]]
    record: ClassVar[np.dtype[Any]]  # numpy's view of one block, a field for each of ours
    can_encode: ClassVar[bool] = False

    def __init_subclass__(cls, *, elements: int, bytes: int) -> None:  # noqa: A002
        super().__init_subclass__()
        cls.name, cls.elements, cls.bytes = cls.__name__, elements, bytes
        cls.layout = MappingProxyType({field.name: field for field in _fields_of(cls)})
        used = sum(field.bytes for field in cls.layout.values())
        if used != bytes:
            raise TypeError(f"the fields of {cls.name} take {used} bytes, not {bytes}")
        if elements % cls.groups:
            raise TypeError(f"{elements} weights of {cls.name} are not {cls.groups} equal groups")
        cls.record = np.dtype(
            [
                (field.name, field.dtype.numpy.newbyteorder("<"), () if n is None else (n,))
                for field in cls.layout.values()
                for n in (field.count,)
            ]
        )
        cls.can_encode = "fill" in vars(cls) or cls.can_encode

    # ---- sizes and views

    @classmethod
    def row_bytes(cls, n_elements: int) -> int:
        """The bytes of a row of `n_elements` weights. Raises FileFormatError for a broken block."""
        if n_elements % cls.elements:
            raise FileFormatError(
                f"a row of {n_elements} weights is not whole {cls.name} blocks of {cls.elements}"
            )
        return n_elements // cls.elements * cls.bytes

    @classmethod
    def row_elements(cls, n_bytes: int) -> int:
        """The weights in a row of `n_bytes` bytes. Raises FileFormatError for a broken block."""
        if n_bytes % cls.bytes:
            raise FileFormatError(
                f"a row of {n_bytes} bytes is not whole {cls.name} blocks of {cls.bytes} bytes"
            )
        return n_bytes // cls.bytes * cls.elements

    @classmethod
    def fields(cls, raw: Bytes) -> Fields:
        """Each field of the blocks of raw [..., n_bytes], as a view where raw's layout allows.

        A scalar field is [..., n_blocks], an array field [..., n_blocks, count]; bf16 is uint16.
        """
        cls.row_elements(raw.shape[-1])
        blocks = np.ascontiguousarray(raw).view(cls.record)
        return {name: blocks[name] for name in cls.layout}

    # ---- what a quantized format says

    @classmethod
    def unpack(cls, block: Fields, out: NDArray[Any]) -> None:  # noqa: ARG003
        """Write the codes of n blocks into out [n, elements], whose dtype the caller chose."""
        raise UnsupportedError(f"{cls.name} has no codes: its weights are plain numbers")

    @classmethod
    def spread(cls, block: Fields) -> tuple[Floats, Floats | None]:  # noqa: ARG003
        """The scales [n, groups] of n blocks, and their offsets where the format has any."""
        raise UnsupportedError(f"{cls.name} has no scales: its weights are plain numbers")

    @classmethod
    def fill(cls, x: Floats, block: Fields) -> None:  # noqa: ARG003
        """Write the fields of n blocks that come closest to the weights x [n, elements]."""
        raise UnsupportedError(f"weights can't be encoded as {cls.name}")

    # ---- what everyone calls

    @classmethod
    def decode(cls, raw: Bytes) -> Floats:
        """The weights [..., n_elements] of raw [..., n_bytes].

        Besides the result this takes memory for a stretch of blocks only; a tensor too large for
        memory is decoded by ranges of its rows. Raises FileFormatError for a broken block.
        """
        return cls._map(raw, np.dtype(np.float32), cls._decode_blocks)

    @classmethod
    def codes(cls, raw: Bytes) -> NDArray[np.int8]:
        """The whole codes [..., n_elements] of raw [..., n_bytes], before scale and offset."""
        return cls._map(raw, np.dtype(np.int8), cls.unpack)

    @classmethod
    def scales(cls, raw: Bytes) -> tuple[Floats, Floats | None]:
        """The scales and offsets, [..., n_blocks * groups] each, of raw [..., n_bytes]."""
        scale, offset = cls.spread(cls._blocks(raw))
        shape = (*raw.shape[:-1], raw.shape[-1] // cls.bytes * cls.groups)
        return scale.reshape(shape), None if offset is None else offset.reshape(shape)

    @classmethod
    def encode(cls, x: NDArray[Any]) -> Bytes:
        """The blocks [..., n_bytes] that come closest to the weights x [..., n_elements].

        Raises FileFormatError for rows that are not whole blocks, UnsupportedError for a format
        that can't be encoded and for weights that no block can hold.
        """
        out = np.empty((*x.shape[:-1], cls.row_bytes(x.shape[-1])), np.uint8)
        blocks = out.reshape(-1, cls.bytes)
        weights = x.reshape(-1, cls.elements)
        for here in _stretches(len(blocks), cls.elements):
            cls.fill(weights[here].astype(np.float32), cls._blocks(blocks[here]))
        return out

    @classmethod
    def _blocks(cls, raw: Bytes) -> Fields:
        """The fields of all blocks of raw in one run: [n] or [n, count] each."""
        cls.row_elements(raw.shape[-1])
        blocks = raw.reshape(-1).view(cls.record)
        return {name: blocks[name] for name in cls.layout}

    @classmethod
    def _map(
        cls,
        raw: Bytes,
        dtype: np.dtype[Any],
        write: Callable[[Fields, NDArray[Any]], None],
    ) -> NDArray[Any]:
        """Let `write` turn the blocks of raw, a stretch at a time, into elements of `dtype`."""
        out = np.empty((*raw.shape[:-1], cls.row_elements(raw.shape[-1])), dtype)
        blocks, results = raw.reshape(-1, cls.bytes), out.reshape(-1, cls.elements)
        for here in _stretches(len(blocks), cls.elements):
            write(cls._blocks(blocks[here]), results[here])
        return out

    @classmethod
    def _decode_blocks(cls, block: Fields, out: Floats) -> None:
        cls.unpack(block, out)
        scale, offset = cls.spread(block)
        by_group = out.reshape(len(out), cls.groups, -1)
        with np.errstate(all="ignore"):  # damaged scales may be infinite: so are their weights
            by_group *= scale[:, :, None]
            if offset is not None:
                by_group += offset[:, :, None]


def _fields_of(cls: type[Block]) -> Iterator[Field]:
    offset = 0
    for name, kind in vars(cls).items():
        match kind:
            case DType():
                field = Field(name, kind, None, offset)
            case Array():
                field = Field(name, kind.dtype, kind.count, offset)
            case _:
                continue
        yield field
        offset += field.bytes


def _stretches(n_blocks: int, elements: int) -> Iterator[slice]:
    step = max(1, STRETCH // elements)
    return (slice(start, start + step) for start in range(0, n_blocks, step))
