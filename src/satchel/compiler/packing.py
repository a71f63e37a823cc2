"""The packed weights of a model: made from the file once, kept as a file of the cache, and mapped
from there ever after.

An entry never goes stale: its key names the model file's fingerprint, the layouts and the
recipes. It is written beside its place and then renamed, so there is never half of one; what is
damaged all the same is noticed by its header and made anew.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import secrets
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from satchel.base import log
from satchel.compiler.weights import Bytes, FileRows, Weight
from satchel.files.checkpoint import Checkpoint
from satchel.runtime.memory import align

SCHEMA = 1  # raised when the layout of a packed format, or of this file, changes
HEADER = 4096
_MAGIC = b"satchel packed\n"


def offsets_of(weights: Mapping[str, Weight]) -> tuple[dict[str, int], int]:
    """Where each weight's bytes begin after the header, and the bytes of all."""
    at, offsets = 0, {}
    for name, weight in weights.items():
        if not isinstance(weight, FileRows):
            offsets[name] = at
            at = align(at + weight.bytes)
    return offsets, at


class PackedWeights:
    """The weights' bytes in one piece of memory: `addresses` by name. Mapped from the cache where
    that can be.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Mapping[str, Weight],
        folder: Path | None,
        n_workers: int,
    ) -> None:
        """Raises MemoryLimitError when they fit nowhere; a cache that can't be written is said in
        the log and done without.
        """
        self._checkpoint, self._weights, self._n_workers = checkpoint, weights, n_workers
        self._offsets, self.n_bytes = offsets_of(weights)
        recipes = "\n".join(f"{name} {weight}" for name, weight in weights.items())
        self._key = hashlib.sha256(
            f"{SCHEMA}\n{checkpoint.fingerprint}\n{recipes}".encode()
        ).hexdigest()
        self.path = None if folder is None else folder / "packed" / f"{self._key[:40]}.weights"
        self._bytes = self._open()
        base = self._bytes.ctypes.data + HEADER
        self.addresses = {name: base + at for name, at in self._offsets.items()}
        for name, weight in weights.items():
            if isinstance(weight, FileRows):
                self.addresses[name] = checkpoint.raw(weight.tensor).ctypes.data

    @property
    def header(self) -> bytes:
        return (_MAGIC + f"{self._key}\n{self.n_bytes}\n".encode()).ljust(HEADER, b"\0")

    def _open(self) -> Bytes:
        found = self._map()
        if found is not None:
            return found
        if self.path is not None:
            try:
                self._write(self.path)
            except OSError as error:
                log.warning(
                    f"the packed weights are kept in memory alone, as {self.path.parent} can't be used: {error.strerror}"
                )
            else:
                found = self._map()
        return self._pack(np.zeros(HEADER + self.n_bytes, np.uint8)) if found is None else found

    def _map(self) -> Bytes | None:
        """The cache's entry, mapped; None where there is none that is whole."""
        if self.path is None:
            return None
        try:
            with self.path.open("rb") as file:
                whole = os.fstat(file.fileno()).st_size == HEADER + self.n_bytes
                if whole and file.read(HEADER) == self.header:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    return np.frombuffer(mapped, np.uint8)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning(
                f"the packed weights are made anew, as {self.path} can't be read: {error.strerror}"
            )
            return None
        log.info(f"the packed weights in {self.path} are damaged and will be made anew")
        return None

    def _write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("w+b") as file:
                os.posix_fallocate(
                    file.fileno(), 0, HEADER + self.n_bytes
                )  # a full disk shows here, not as a signal later
                mapped = mmap.mmap(file.fileno(), HEADER + self.n_bytes)
                self._pack(np.frombuffer(mapped, np.uint8))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _pack(self, out: Bytes) -> Bytes:
        """Make every weight; the header is written last."""

        def make(name: str) -> None:
            at = HEADER + self._offsets[name]
            made = self._weights[name]
            assert not isinstance(made, FileRows)
            out[at : at + made.bytes] = made.make(self._checkpoint)

        with ThreadPoolExecutor(max(1, self._n_workers)) as pool:
            list(pool.map(make, self._offsets))
        out[:HEADER] = np.frombuffer(self.header, np.uint8)
        return out
