"""Write GGUF files: whole models or split ones, with every value in the type it is given in."""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from satchel import formats
from satchel.base.errors import FileFormatError, OptionError
from satchel.files.metadata import Bytes, LazyArray, Metadata, ValueType, quote
from satchel.formats import Block

# A Python value gets the type most files have (u32 or wider, f32); numpy's keep their own.
Writable: TypeAlias = (
    bool | int | float | str | np.generic | LazyArray | Sequence[Any] | NDArray[Any]
)
PIECE = 1 << 22  # bytes written at a time


@dataclass(frozen=True)
class TensorData:
    """A tensor as its blocks: raw [n_rows, row_bytes], whose weights have the shape."""

    format: type[Block]
    shape: tuple[int, ...]
    raw: Bytes

    @classmethod
    def encoded(cls, block: type[Block], weights: NDArray[Any]) -> TensorData:
        """The weights, encoded in the format. Raises as `Block.encode` does."""
        raw = block.encode(weights)
        return cls(block, weights.shape, raw.reshape(-1, raw.shape[-1]))

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape[:-1]) * self.format.row_bytes(self.shape[-1])


def write_gguf(
    path: str | Path,
    metadata: Mapping[str, Writable],
    tensors: Mapping[str, TensorData | NDArray[Any]],
    *,
    version: int = 3,
) -> None:
    """Write a model file; what was at the path stays until the new file is whole.

    Arrays of float32 and float16 are written as F32 and F16. Tensors are aligned as the key
    `general.alignment` says, else to 32 bytes. Metadata of a file that was read is written in the
    types it had. Raises FileFormatError for values that GGUF can't hold, OptionError for a path
    that can't be written.
    """
    path = Path(path)
    blocks = {name: _as_blocks(name, tensor) for name, tensor in tensors.items()}
    alignment = _alignment(metadata)
    header = _header(metadata, blocks, version, alignment)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        try:
            with unfinished.open("wb") as file:
                _write(file, header, blocks, alignment)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise OptionError(f"{path} can't be written: {error.strerror}") from None


def write_split_gguf(
    path: str | Path,
    metadata: Mapping[str, Writable],
    tensors: Mapping[str, TensorData | NDArray[Any]],
    n_parts: int,
) -> list[Path]:
    """Write a model as `n_parts` files and return their paths, the first one to be opened.

    The path without its suffix begins their names. All of the metadata is in the first part, the
    tensors are spread evenly by number. Raises as `write_gguf` does.
    """
    path = Path(path)
    names = list(tensors)
    paths = [
        path.with_name(f"{path.stem}-{i:05}-of-{n_parts:05}.gguf") for i in range(1, n_parts + 1)
    ]
    for i, part in enumerate(paths):
        keys: dict[str, Writable] = {
            "split.no": np.uint16(i),
            "split.count": np.uint16(n_parts),
            "split.tensors.count": np.int32(len(names)),
        }
        here = names[i * len(names) // n_parts : (i + 1) * len(names) // n_parts]
        write_gguf(part, (_typed(metadata) if i == 0 else {}) | keys, {n: tensors[n] for n in here})
    return paths


def _as_blocks(name: str, tensor: TensorData | NDArray[Any]) -> TensorData:
    if isinstance(tensor, TensorData):
        shape, row_bytes = tensor.shape, tensor.format.row_bytes(tensor.shape[-1])
        if tensor.raw.shape != (math.prod(shape[:-1]), row_bytes):
            raise FileFormatError(
                f"tensor {quote(name)} of shape {shape}: its bytes have shape {tensor.raw.shape}"
            )
        return tensor
    block = {"float32": formats.F32, "float16": formats.F16}.get(tensor.dtype.name)
    if block is None:
        raise FileFormatError(f"tensor {quote(name)}: {tensor.dtype} is not written; encode it")
    if not tensor.ndim:
        tensor = tensor.reshape(1)
    rows = tensor.reshape(-1, tensor.shape[-1])
    return TensorData(block, tensor.shape, np.ascontiguousarray(rows).view(np.uint8))


def _write(
    file: BinaryIO, header: bytes, tensors: Mapping[str, TensorData], alignment: int
) -> None:
    file.write(header)
    for tensor in tensors.values():
        rows = max(1, PIECE // max(1, tensor.raw.shape[-1]))
        for start in range(0, len(tensor.raw), rows):
            file.write(np.ascontiguousarray(tensor.raw[start : start + rows]).data)
        file.write(bytes(-tensor.n_bytes % alignment))


def _header(
    metadata: Mapping[str, Writable],
    tensors: Mapping[str, TensorData],
    version: int,
    alignment: int,
) -> bytes:
    """All before the data of the tensors, padded to the alignment."""
    keys = _typed(metadata)
    header = bytearray(struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(keys)))
    for key, value in keys.items():
        header += _string(key)
        header += b"".join(_value(key, value))
    sizes = (tensor.n_bytes + -tensor.n_bytes % alignment for tensor in tensors.values())
    offsets = accumulate(sizes, initial=0)
    for (name, tensor), offset in zip(tensors.items(), offsets, strict=False):
        n_dims = len(tensor.shape)
        header += _string(name)
        header += struct.pack(f"<I{n_dims}Q", n_dims, *reversed(tensor.shape))
        header += struct.pack("<IQ", tensor.format.type_id, offset)
    return bytes(header) + bytes(-len(header) % alignment)


def _alignment(metadata: Mapping[str, Writable]) -> int:
    given: Any = metadata.get("general.alignment", 32)
    if not isinstance(given, int | np.integer) or given <= 0 or given & (given - 1):
        raise FileFormatError(f"general.alignment is {given}, not a power of two")
    return int(given)  # pyright: ignore[reportUnknownArgumentType]


def _typed(metadata: Mapping[str, Writable]) -> dict[str, Writable]:
    """The values of a file that was read in the types they had; other mappings as they are."""
    if not isinstance(metadata, Metadata):
        return dict(metadata)
    plain = (ValueType.STRING, ValueType.ARRAY, ValueType.BOOL)
    return {
        key: value if kind in plain else kind.dtype.type(value)
        for (key, value), kind in zip(metadata.items(), metadata.types.values(), strict=True)
    }


def _string(text: str) -> bytes:
    content = text.encode()
    return struct.pack("<Q", len(content)) + content


def _value(key: str, value: Writable) -> Iterator[bytes]:
    """The type and the bytes of a key's value."""
    if isinstance(value, str):
        yield struct.pack("<I", ValueType.STRING)
        yield _string(value)
    elif isinstance(value, LazyArray | Sequence | np.ndarray):
        yield struct.pack("<I", ValueType.ARRAY)
        yield from _array(key, value)
    else:
        number = np.asarray(value if isinstance(value, np.generic) else _numbers(key, [value])[0])
        yield struct.pack("<I", _type_of(key, number))
        yield number.tobytes()


def _array(key: str, value: LazyArray | Sequence[Any] | NDArray[Any]) -> Iterator[bytes]:
    """The element type, the length and the elements."""
    if isinstance(value, LazyArray):
        value = list(value) if value.is_strings else value.numpy()
    if not isinstance(value, np.ndarray) and any(isinstance(item, str) for item in value):
        if not all(isinstance(item, str) for item in value):
            raise FileFormatError(f"key {quote(key)}: strings and numbers can't be in one array")
        yield struct.pack("<IQ", ValueType.STRING, len(value))
        yield from (_string(item) for item in value)
        return
    numbers: NDArray[Any] = value if isinstance(value, np.ndarray) else _numbers(key, value)
    if numbers.ndim != 1:
        raise FileFormatError(f"key {quote(key)}: only flat arrays can be written")
    yield struct.pack("<IQ", _type_of(key, numbers), len(numbers))
    yield numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()


def _numbers(key: str, items: Sequence[Any]) -> NDArray[Any]:
    """Python's numbers in the narrowest of the usual types: bool, u32, i32, u64, i64 or f32."""
    kinds: set[type] = {type(item) for item in items}
    if kinds == {bool}:
        return np.array(items, np.bool_)
    if kinds <= {int, float} and float in kinds:
        return np.array(items, np.float32)
    if kinds <= {int}:
        for dtype in (np.uint32, np.int32, np.uint64, np.int64):
            range_ = np.iinfo(dtype)
            if all(range_.min <= item <= range_.max for item in items):
                return np.array(items, dtype)
    raise FileFormatError(f"key {quote(key)}: its value has no type in GGUF")


def _type_of(key: str, numbers: NDArray[Any]) -> ValueType:
    if numbers.dtype == np.bool_:
        return ValueType.BOOL
    name = f"{numbers.dtype.kind}{numbers.dtype.itemsize * 8}".upper()
    if numbers.dtype.kind not in "iuf" or name not in ValueType.__members__:
        raise FileFormatError(f"key {quote(key)}: GGUF has no type for {numbers.dtype}")
    return ValueType[name]
