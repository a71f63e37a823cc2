"""The cache of compiled objects: a file for each key, safe to lose, to damage and to share.

A key names everything that an object was made from, so an entry never goes stale. Nothing here
fails for want of a disk: without a directory that can be written, objects are made anew each time,
and the log says so once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from satchel.base import log
from satchel.base.kept import is_ours
from satchel.runtime.forked import map_forked

SCHEMA = 1  # raised when what is done with a key's parts changes
_MAGIC = b"satchel1"
_HEADER = len(_MAGIC) + 32  # the magic and a SHA-256 of key and object


@dataclass(frozen=True)
class Usage:
    """What the cache holds on disk."""

    n_objects: int
    bytes: int


@dataclass(frozen=True)
class Request:
    """An object that is needed: its key, and how to make it."""

    key: str
    make: Callable[[], bytes]


def object_key(*parts: str) -> str:
    """The key of an object made from these parts (source, constants, target), 64 hex digits."""
    digest = hashlib.sha256()
    for part in (str(SCHEMA), _compiler(), *parts):
        raw = part.encode()
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


@cache
def _compiler() -> str:
    """What tells llvmlite and its LLVM from others, found without importing it."""
    spec = importlib.util.find_spec("llvmlite")
    if spec is None or spec.origin is None:
        return "none"
    folder = Path(spec.origin).parent
    libraries = sorted((folder / "binding").glob("*llvmlite.*"))
    sizes = [f"{path.name} {path.stat().st_size}" for path in libraries]
    return "\n".join([(folder / "_version.py").read_text(), *sizes])


class ObjectCache:
    """Objects by key in `directory`/objects; with None, nothing is kept."""

    def __init__(self, directory: str | Path | None) -> None:
        self._folder = None if directory is None else Path(directory) / "objects"
        if self._folder is not None and not is_ours(self._folder):
            self._give_up("others can write to it")  # and what they write would be run

    def load(self, key: str) -> bytes | None:
        """The object of this key, or None when there is none that is whole."""
        if self._folder is None:
            return None
        try:
            raw = self._path(key).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._give_up(error.strerror or str(error))
            return None
        data = raw[_HEADER:]
        if raw[:_HEADER] != _header(key, data):
            log.info(f"the cache entry {key} is damaged and will be rebuilt")
            return None
        return data

    def store(self, key: str, data: bytes) -> None:
        """Keep an object. Who reads at the same time sees the old entry or the new one, whole."""
        if self._folder is None:
            return
        path = self._path(key)
        temporary = path.with_name(f"{key}.{os.urandom(8).hex()}.tmp")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            try:
                temporary.write_bytes(_header(key, data) + data)
                os.replace(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
        except OSError as error:
            self._give_up(error.strerror or str(error))

    def usage(self) -> Usage:
        """How many files the cache has, and their bytes."""
        sizes = [path.stat().st_size for path in self._files()]
        return Usage(len(sizes), sum(sizes))

    def clear(self) -> Usage:
        """Delete all entries; returns what was deleted."""
        deleted: list[int] = []
        for path in self._files():
            size = path.stat().st_size
            path.unlink(missing_ok=True)
            deleted.append(size)
        return Usage(len(deleted), sum(deleted))

    def _path(self, key: str) -> Path:
        assert self._folder is not None
        return self._folder / f"{key}.o"

    def _files(self) -> list[Path]:
        if self._folder is None or not self._folder.is_dir():
            return []
        return [path for path in self._folder.iterdir() if path.suffix in (".o", ".tmp")]

    def _give_up(self, reason: str) -> None:
        """Go on without a cache, and say so."""
        log.warning(f"no kernels are cached, as {self._folder} can't be used: {reason}")
        self._folder = None


def _header(key: str, data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(key.encode() + data).digest()


def build_objects(
    requests: Iterable[Request], cache: ObjectCache, n_workers: int = 1
) -> dict[str, bytes]:
    """The objects of all requests, by key: from the cache, or made and stored there.

    What is missing is made by up to `n_workers` processes, where that is more than one and the
    system can fork: llvmlite lets only one thread at a time into LLVM, an LLVM that gives up takes
    its process with it, and one that was loaded leaves it 70 MB larger.
    Raises KernelError when such a process dies, and whatever `make` raises.
    """
    wanted = {request.key: request.make for request in requests}
    found = {key: cache.load(key) for key in wanted}
    missing = [Request(key, make) for key, make in wanted.items() if found[key] is None]
    if n_workers > 1 and missing and hasattr(os, "fork"):
        made = map_forked([request.make for request in missing], min(n_workers, len(missing)))
    else:
        made = [request.make() for request in missing]
    for request, data in zip(missing, made, strict=True):
        cache.store(request.key, data)
        found[request.key] = data
    return {key: data for key, data in found.items() if data is not None}
