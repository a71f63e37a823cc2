"""A checkpoint: the weights and numbers of one model, whatever files they lie in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from satchel.base.errors import FileFormatError
from satchel.files.gguf import GGUFFile, TensorInfo, read_gguf
from satchel.files.metadata import Bytes, Metadata, quote, within


class Checkpoint:
    """The tensors, under GGUF's names, and the metadata of a model; nothing is read until asked."""

    def __init__(self, file: GGUFFile) -> None:
        """Raises FileFormatError when the file does not say what it is, or holds no weights."""
        self._file = file
        self.metadata: Metadata = file.metadata
        with within(str(file.path)):
            self.arch: str = self.metadata.get_str("general.architecture")
            if not file.tensors:
                raise FileFormatError("it holds no tensors, so it is not a model")

    @property
    def path(self) -> Path:
        """The file, or the first of a split model's files."""
        return self._file.path

    @property
    def paths(self) -> tuple[Path, ...]:
        return tuple(part.path for part in self._file.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all tensors, in the file's order."""
        return tuple(self._file.tensors)

    @property
    def n_bytes(self) -> int:
        """The bytes of all tensors together, as they are stored."""
        return sum(tensor.n_bytes for tensor in self.tensors())

    @property
    def n_weights(self) -> int:
        return sum(tensor.n_elements for tensor in self.tensors())

    @property
    def fingerprint(self) -> str:
        """32 hex digits that tell this file from others and from later versions of itself."""
        return self._file.fingerprint

    def __contains__(self, name: str) -> bool:
        return name in self._file.tensors

    def tensors(self) -> Iterator[TensorInfo]:
        return iter(self._file.tensors.values())

    def tensor(self, name: str) -> TensorInfo:
        """What the file says of a tensor. Raises FileFormatError, naming it, when it is missing."""
        tensor = self._file.tensors.get(name)
        if tensor is None:
            raise FileFormatError(f"{self.path}: tensor {quote(name)} is missing")
        return tensor

    def raw(self, name: str) -> Bytes:
        """The blocks [n_rows, row_bytes], a view of the file. Raises as `tensor` does."""
        return self._file.raw(name)


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a model file, or the first of a split model. Raises as `read_gguf` does."""
    return Checkpoint(read_gguf(path))
