"""Read GGUF files where they lie: mapped into memory, checked whole before anything is used.

A file is a header (magic, version, counts), keys with values, the table of tensors, and their
data, all little-endian. Source: docs/gguf.md of the ggml project; versions 2 and 3 differ in
nothing that a little-endian reader sees. A model may be split over several files.
"""

from __future__ import annotations

import errno
import hashlib
import math
import mmap
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from satchel import formats
from satchel.base.errors import (
    FileFormatError,
    ModelNotFoundError,
    UnsupportedError,
    in_one_line,
)
from satchel.files.gguf_writer import TensorData, write_gguf, write_split_gguf
from satchel.files.metadata import Bytes, Cursor, Metadata, Value, ValueType, quote, within
from satchel.formats import Block

MAGIC = b"GGUF"
VERSIONS = (2, 3)
ALIGNMENT = 32  # of tensors, where the file does not say
MAX_DIMS = 4
KEY_BYTES, TENSOR_BYTES = 8 + 4 + 1, 8 + 4 + 4 + 8  # the least that an entry of each table takes
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `offset` bytes into file `part`; shape as numpy has it, rows first."""

    name: str
    format: type[Block]
    shape: tuple[int, ...]
    offset: int
    n_bytes: int
    part: int = 0

    @property
    def n_elements(self) -> int:
        return math.prod(self.shape)

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def row_bytes(self) -> int:
        return self.n_bytes // self.n_rows


@dataclass(frozen=True)
class Part:
    """One file: its bytes (a mapping of it), where its header ends, and what that says."""

    path: Path
    data: Bytes
    header_bytes: int
    version: int
    metadata: Metadata
    tensors: dict[str, TensorInfo]


class GGUFFile:
    """A model file, or all files of a split model as one. Its arrays keep the files mapped."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        self.parts = parts
        self.path = parts[0].path
        self.version = parts[0].version
        self.metadata = parts[0].metadata
        self.tensors: Mapping[str, TensorInfo] = {
            tensor.name: tensor for part in parts for tensor in part.tensors.values()
        }

    def raw(self, name: str) -> Bytes:
        """A view [n_rows, row_bytes] of the file. Raises FileFormatError for an unknown name."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FileFormatError(f"{self.path} has no tensor {quote(name)}")
        data = self.parts[tensor.part].data[tensor.offset : tensor.offset + tensor.n_bytes]
        return data.reshape(tensor.n_rows, tensor.row_bytes)

    @cached_property
    def fingerprint(self) -> str:
        """Tells this file from others and from later versions of itself, without reading it all.

        Of path, size, time of the last change and the header but for the long arrays in it.
        """
        digest = hashlib.sha256()
        for part in self.parts:
            status = part.path.stat()
            digest.update(f"{part.path.resolve()} {status.st_size} {status.st_mtime_ns}\n".encode())
            digest.update(bytes(part.data[: min(4096, part.header_bytes)]))
            for tensor in part.tensors.values():
                digest.update(repr((tensor.name, tensor.shape, tensor.offset)).encode())
        return digest.hexdigest()[:32]


def read_gguf(path: str | Path) -> GGUFFile:
    """Open a model file, or the first of a split model and with it all others.

    Raises ModelNotFoundError for a missing file, FileFormatError for a damaged one and
    UnsupportedError for what Satchel does not read; each names the file and the place.
    """
    path = Path(path)
    first = _read_part(path, 0)
    with within(str(path)):
        n_parts = first.metadata.get_int("split.count", 1)
        if n_parts <= 1:
            return GGUFFile((first,))
        paths = _part_paths(path, first, n_parts)
    parts = (first, *(_read_part(other, i) for i, other in enumerate(paths[1:], 1)))
    with within(str(path)):
        _check_parts(parts)
    return GGUFFile(parts)


def _read_part(path: Path, number: int) -> Part:
    data = _map(path)
    with within(str(path)):
        cursor = Cursor(data)
        version = _read_version(cursor)
        n_tensors, n_keys = cursor.u64("the number of tensors"), cursor.u64("the number of keys")
        for count, least, what in (
            (n_keys, KEY_BYTES, "keys"),
            (n_tensors, TENSOR_BYTES, "tensors"),
        ):
            if count > cursor.left // least:
                raise FileFormatError(
                    f"{count} {what} are more than a file of {len(data)} bytes holds"
                )
        metadata = _read_metadata(cursor, n_keys)
        tensors = [_read_tensor(cursor, number) for _ in range(n_tensors)]
        placed = _place(tensors, cursor, _alignment(metadata))
        return Part(path, data, cursor.position, version, metadata, placed)


def _map(path: Path) -> Bytes:
    """The bytes of a file, mapped and not read."""
    try:
        with path.open("rb") as file:
            if not file.seek(0, 2):
                raise FileFormatError(f"{path} is empty; fetch it again")
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)
    except FileNotFoundError:
        raise ModelNotFoundError(f"{path} does not exist") from None
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise in_one_line(error) from None
        raise FileFormatError(f"{path} can't be read: {error.strerror}") from None


def _read_version(cursor: Cursor) -> int:
    head = bytes(cursor.data[:16])
    if head.startswith(b"version https://"):
        raise FileFormatError("this is a Git LFS pointer, not the model; run git lfs pull")
    if head[:4] != MAGIC:
        raise FileFormatError(f"not a GGUF file: it starts with {head[:4]!r}, not {MAGIC!r}")
    cursor.advance(4, "the magic")
    version = cursor.u32("the version")
    swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in VERSIONS and swapped in (1, *VERSIONS):
        raise UnsupportedError("the file is big-endian; Satchel reads little-endian ones only")
    if version not in VERSIONS:
        raise UnsupportedError(f"GGUF version {version}; Satchel reads 2 and 3, convert the file")
    return version


def _read_metadata(cursor: Cursor, n_keys: int) -> Metadata:
    values: dict[str, Value] = {}
    types: dict[str, ValueType] = {}
    for i in range(n_keys):
        with within(f"key {i}"):
            key = cursor.text("its name")
        if key in values:
            raise FileFormatError(f"key {quote(key)} appears twice")
        with within(f"key {quote(key)}"):
            types[key] = cursor.value_type("its type")
            values[key] = cursor.value(key, types[key])
    return Metadata(values, types)


def _alignment(metadata: Metadata) -> int:
    alignment = metadata.get_int("general.alignment", ALIGNMENT)
    if alignment <= 0 or alignment & (alignment - 1):
        raise FileFormatError(f"general.alignment is {alignment}, not a power of two")
    return alignment


def _read_tensor(cursor: Cursor, part: int) -> TensorInfo:
    """An entry of the table; its offset still counts from the start of the data."""
    place = cursor.position
    with within(f"the tensor table at byte {place}"):
        name = cursor.text("a tensor's name")
    with within(f"tensor {quote(name)}"):
        n_dims = cursor.u32("the number of dimensions")
        if n_dims > MAX_DIMS:
            raise FileFormatError(f"it has {n_dims} dimensions; at most {MAX_DIMS} are possible")
        # GGUF counts the row's elements first; a tensor without dimensions is one number.
        shape = tuple(cursor.u64("a dimension") for _ in range(n_dims))[::-1] or (1,)
        if 0 in shape or math.prod(shape) >= 1 << 63:
            raise FileFormatError(f"its shape {_shown(shape)} is not possible")
        block = formats.by_id(cursor.u32("the block type"))
        n_bytes = math.prod(shape[:-1]) * block.row_bytes(shape[-1])
        return TensorInfo(name, block, shape, cursor.u64("the offset"), n_bytes, part)


def _place(tensors: list[TensorInfo], cursor: Cursor, alignment: int) -> dict[str, TensorInfo]:
    """Check where all tensors lie, and count their offsets from the start of the file."""
    start = -(-cursor.position // alignment) * alignment
    placed: dict[str, TensorInfo] = {}
    for tensor in tensors:
        name, end = quote(tensor.name), start + tensor.offset + tensor.n_bytes
        if tensor.name in placed:
            raise FileFormatError(f"tensor {name} appears twice")
        if tensor.offset % alignment:
            raise FileFormatError(
                f"tensor {name}: its offset {tensor.offset} is not a multiple of {alignment}"
            )
        if end > cursor.size:
            raise FileFormatError(
                f"tensor {name} of shape {_shown(tensor.shape)} ends at byte {end}, but the file at"
                f" byte {cursor.size}; it is cut short or damaged, fetch it again"
            )
        placed[tensor.name] = replace(tensor, offset=start + tensor.offset)
    for before, after in pairwise(sorted(placed.values(), key=lambda tensor: tensor.offset)):
        if before.offset + before.n_bytes > after.offset:
            raise FileFormatError(f"tensors {quote(before.name)} and {quote(after.name)} overlap")
    return placed


def _shown(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))


# ---- split models


def _part_paths(path: Path, first: Part, n_parts: int) -> list[Path]:
    """Where all parts lie, by the first one's name and keys."""
    number = first.metadata.get_int("split.no", 0)
    match = PART.fullmatch(path.name)
    if match is None or int(match[3]) != n_parts:
        raise FileFormatError(
            f"this is part {number + 1} of {n_parts}, but its name does not end in"
            f" -{number + 1:05}-of-{n_parts:05}.gguf; name the parts as they were"
        )
    paths = [path.with_name(f"{match[1]}-{i:05}-of-{match[3]}.gguf") for i in range(1, n_parts + 1)]
    if number != 0 or int(match[2]) != 1:
        raise FileFormatError(
            f"this is part {number + 1} of {n_parts}; open the first one, {paths[0].name}"
        )
    return paths


def _check_parts(parts: tuple[Part, ...]) -> None:
    names: set[str] = set()
    for i, part in enumerate(parts):
        number, count = part.metadata.get_int("split.no"), part.metadata.get_int("split.count")
        if (number, count) != (i, len(parts)):
            raise FileFormatError(
                f"{part.path.name} says it is part {number + 1} of {count},"
                f" not {i + 1} of {len(parts)}; fetch the parts again"
            )
        for name in part.tensors:
            if name in names:
                raise FileFormatError(f"tensor {quote(name)} is in two parts")
            names.add(name)
    expected = parts[0].metadata.get_int("split.tensors.count", len(names))
    if expected != len(names):
        raise FileFormatError(f"the parts hold {len(names)} tensors, not {expected} as they say")


__all__ = [
    "GGUFFile",
    "Part",
    "TensorData",
    "TensorInfo",
    "read_gguf",
    "write_gguf",
    "write_split_gguf",
]
