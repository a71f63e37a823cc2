"""The packed weights of a model: made from the file once, kept as a file of the cache, and mapped
from there ever after.

An entry never goes stale: its key names the model file's fingerprint, the layouts and the recipes.
It is written beside its place, by one process at a time, and then renamed, so there is never half
of one. What is damaged all the same is noticed by its size, its header, or the checksum of a
sample of its pages, and made anew. When entries take more than the limit (SATCHEL_PACKED_LIMIT),
those go that were not used for longest.
"""

from __future__ import annotations

import contextlib
import hashlib
import mmap
import os
import secrets
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from satchel.base import log
from satchel.base.options import options
from satchel.compiler.weights import Bytes, FileRows, Weight
from satchel.files.checkpoint import Checkpoint
from satchel.files.lock import locked
from satchel.lang.target import Target
from satchel.runtime.batch import Sizes
from satchel.runtime.memory import Memory, align, prefer_huge_pages
from satchel.runtime.objects import ObjectCache
from satchel.runtime.plan import Plan

SCHEMA = 2  # raised when the layout of a packed format, or of this file, changes
HEADER = 4096
SAMPLES = 32
RESERVE = 256 << 20  # bytes of the disk that are left to others
_MAGIC = "satchel packed"


def offsets_of(weights: Mapping[str, Weight]) -> tuple[dict[str, int], int]:
    """Where each weight's bytes begin after the header, and the bytes of all."""
    at = 0
    offsets: dict[str, int] = {}
    for name, weight in weights.items():
        if not isinstance(weight, FileRows):
            offsets[name] = at
            at = align(at + weight.bytes)
    return offsets, at


def sizes_of(plan: Plan, weights: Mapping[str, Weight]) -> Sizes:
    """The memory of a model with this plan and these weights."""
    rows = sum(weight.bytes for weight in weights.values() if isinstance(weight, FileRows))
    kinds = dict.fromkeys(("kv", "input", "output", "scratch"), 0)
    for buffer in plan.buffers:
        if buffer.kind in kinds:
            kinds[buffer.kind] += buffer.bytes
    kv = kinds.pop("kv")
    activations = plan.bytes_of("arena") + sum(kinds.values())
    return Sizes(offsets_of(weights)[1] + 2 * HEADER + rows, kv, activations)


class PackedWeights:
    """The weights' bytes in one piece of memory: `addresses` by name. Mapped from the cache where
    that can be.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        weights: Mapping[str, Weight],
        folder: Path | None,
        target: Target,
        objects: ObjectCache,
    ) -> None:
        """`folder`: the cache directory, None to keep them in memory alone; `target` and `objects`
        are for the kernels that make them. Raises MemoryLimitError when they fit nowhere; a cache
        that can't be written is said in the log and done without.
        """
        self._checkpoint, self._weights = checkpoint, weights
        self._target, self._objects = target, objects
        self._offsets, self.n_bytes = offsets_of(weights)
        recipes = "\n".join(f"{name} {weight}" for name, weight in weights.items())
        self._key = hashlib.sha256(
            f"{SCHEMA}\n{checkpoint.fingerprint}\n{recipes}".encode()
        ).hexdigest()
        self.path = None if folder is None else folder / "packed" / f"{self._key[:40]}.weights"
        self._bytes = self._cached(self.path) if self.path is not None else None
        if self._bytes is None:
            self.path = None
            self._bytes = Memory(self._size).array(np.uint8, self._size)
            self._make(self._bytes)
        base = self._bytes.ctypes.data + HEADER
        self.addresses = {name: base + at for name, at in self._offsets.items()}
        for name, weight in weights.items():
            if isinstance(weight, FileRows):
                self.addresses[name] = checkpoint.raw(weight.tensor).ctypes.data

    @property
    def _size(self) -> int:
        return HEADER + self.n_bytes

    def _cached(self, path: Path) -> Bytes | None:
        """The entry, mapped; made first where there is none. None where no cache can be used."""
        try:
            found = self._map(path)
            if found is None:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                with locked(path.with_name("lock"), "packing weights"):
                    found = self._map(path)  # another process may have made it meanwhile
                    if found is None and make_room(path.parent, self._size):
                        self._write(path)
                        found = self._map(path)
        except OSError as error:
            log.warning(
                "the packed weights are kept in memory alone, as "
                f"{path.parent} can't be used: {error.strerror or error}"
            )
            return None
        return found

    def _map(self, path: Path) -> Bytes | None:
        """The cache's entry, mapped; None where there is none that is whole."""
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size == self._size:
                    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                    prefer_huge_pages(mapped)
                    found = np.frombuffer(mapped, np.uint8)
                    if found[:HEADER].tobytes() == self._header(found):
                        with contextlib.suppress(OSError):  # a cache that only others may write to
                            os.utime(path)
                        return found
        except FileNotFoundError:
            return None
        log.info(f"the packed weights in {path} are damaged and will be made anew")
        return None

    def _header(self, whole: Bytes) -> bytes:
        text = f"{_MAGIC}\n{self._key}\n{self.n_bytes}\n{sample(whole[HEADER:]):08x}\n"
        return text.encode().ljust(HEADER, b"\0")

    def _write(self, path: Path) -> None:
        """Make the entry. Raises OSError where the disk has no room."""
        temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
        try:
            with temporary.open("w+b") as file:
                _allocate(file.fileno(), self._size)
                mapped = mmap.mmap(file.fileno(), self._size)
                prefer_huge_pages(mapped)
                self._make(np.frombuffer(mapped, np.uint8))
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def _make(self, out: Bytes) -> None:
        """Make every weight; the header is written last."""
        # imported here, as a warm start needs no kernel's source
        from satchel.compiler.make_weights import make_weights

        places = {
            name: out[HEADER + at : HEADER + at + self._weights[name].bytes]
            for name, at in self._offsets.items()
        }
        make_weights(self._checkpoint, self._weights, places, self._target, self._objects)
        out[:HEADER] = np.frombuffer(self._header(out), np.uint8)


def sample(weights: Bytes) -> int:
    """A checksum of pages spread evenly over the weights, the first and the last among them."""
    last = max(0, len(weights) - mmap.PAGESIZE)
    found = 0
    for i in range(SAMPLES):
        at = last * i // (SAMPLES - 1)
        found = zlib.crc32(weights[at : at + mmap.PAGESIZE], found)
    return found


def make_room(folder: Path, n_bytes: int) -> bool:
    """Delete entries, those not used for longest first, until one of n_bytes has room under the
    limit and on the disk; whether it has. Whoever calls holds the folder's lock.
    """
    limit = options().packed_limit
    for path in folder.glob("*.tmp"):  # of a process that died: only who holds the lock writes
        path.unlink(missing_ok=True)
    status = sorted((p.stat().st_mtime_ns, p.stat().st_size, p) for p in folder.glob("*.weights"))
    kept, free = sum(size for _, size, _ in status), shutil.disk_usage(folder).free
    gained = free + kept if n_bytes <= limit else 0
    if gained < n_bytes + RESERVE:
        reason = (
            f"the limit of {log.size(limit)}"
            if n_bytes > limit
            else f"what the disk has free: {log.size(free)}"
        )
        log.warning(
            f"the packed weights ({log.size(n_bytes)}) are kept in memory alone, as they are more "
            f"than {reason}; see SATCHEL_PACKED_LIMIT and SATCHEL_CACHE"
        )
        return False
    for _, size, path in status:
        if kept + n_bytes <= limit and free >= n_bytes + RESERVE:
            break
        log.info(f"deleting packed weights not used for long: {path}")
        path.unlink(missing_ok=True)  # who has it mapped keeps it until closed
        kept, free = kept - size, free + size
    return True


def _allocate(file: int, n_bytes: int) -> None:
    """Give a file its bytes, so that a full disk shows here, not as a signal on a write later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, n_bytes)
        return
    for at in range(0, n_bytes, 1 << 20):
        os.write(file, bytes(min(1 << 20, n_bytes - at)))
