"""Pages of the KV cache in files, each a record that shows when it is damaged.

A record is a header and the page as it lies in memory. Its key is a hash of all that the page was
computed from, so no record is ever out of date. What is known by one key lies in several records,
one for each group of layers.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
import zlib
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

from satchel.base import log
from satchel.base.errors import CacheError, FileFormatError
from satchel.base.kept import is_ours

Bytes: TypeAlias = bytes | bytearray | memoryview
Name: TypeAlias = tuple[bytes, int]  # a key and a group

VERSION = 1
KEY_BYTES = 32
TITLE = 2**16 - 1  # no group: the first record of a file of many, which says what they are
_HEADER = struct.Struct(f"<8sHHIQ{KEY_BYTES}s")  # magic, version, group, CRC-32, length, key
_MAGIC = b"satchelK"
_KEPT_PART_S = 3600  # a file that has been unfinished for so long was left by a process that died
_ROOM = 0.9  # what is left of the limit when old pages had to go


@dataclass(frozen=True)
class Usage:
    """What a folder of pages holds."""

    n_files: int
    bytes: int


def header(key: bytes, group: int, page: Bytes) -> bytes:
    """What stands before a page in its record."""
    crc = _checksum(key, group, page)
    return _HEADER.pack(_MAGIC, VERSION, group, crc, len(page), key)


def _checksum(key: bytes, group: int, page: Bytes) -> int:
    return zlib.crc32(page, zlib.crc32(key + group.to_bytes(2, "little")))


def _read_header(raw: bytes) -> tuple[Name, int, int]:
    """Key and group, length and checksum. Raises FileFormatError."""
    if len(raw) < _HEADER.size:
        raise FileFormatError("it ends in the middle of a record")
    magic, version, group, crc, length, key = _HEADER.unpack(raw)
    if magic != _MAGIC:
        raise FileFormatError("these are not pages that Satchel saved")
    if version != VERSION:
        raise FileFormatError(f"version {version} of saved pages is not known, only {VERSION}")
    return (key, group), length, crc


def read_record(file: IO[bytes], name: Name, n_bytes: int) -> bytes:
    """The page of the record at the file's place. Raises OSError and FileFormatError."""
    found, length, crc = _read_header(file.read(_HEADER.size))
    if found != name:
        raise FileFormatError("it holds another page than its name says")
    if length != n_bytes:
        raise FileFormatError(f"it holds a page of {length} bytes, not of {n_bytes}")
    page = file.read(length)
    if len(page) != length or _checksum(*name, page) != crc:
        raise FileFormatError("it is damaged")
    return page


@contextlib.contextmanager
def _replacing(path: Path) -> Generator[IO[bytes]]:
    """A file that only its owner reads, and that appears at `path` when it is whole."""
    part = path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}.part")
    try:
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


class PageFile:
    """A file of many records. Pages are read when asked for; no handle is kept meanwhile."""

    def __init__(self, path: Path) -> None:
        """Reads the headers. Raises FileFormatError, and CacheError when it can't be read."""
        self.path = path
        self._places: dict[Name, tuple[int, int]] = {}  # where each record begins, its length
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                self.title = self._scan(file, size)
        except OSError as error:
            raise CacheError(f"{path} can't be read: {error.strerror or error}") from None
        except FileFormatError as error:
            raise FileFormatError(f"{path}: {error}") from None

    def _scan(self, file: IO[bytes], size: int) -> bytes:
        place, title = 0, None
        while place < size:
            file.seek(place)
            name, length, _ = _read_header(file.read(_HEADER.size))
            if length > size - place - _HEADER.size:
                break
            if title is None:
                file.seek(place)
                title = read_record(file, (bytes(KEY_BYTES), TITLE), length)
            else:
                self._places[name] = (place, length)
            place += _HEADER.size + length
        if title is None or place != size:
            raise FileFormatError("it ends in the middle of a record")
        return title

    def has(self, key: bytes, group: int) -> bool:
        """Whether there is such a page."""
        return (key, group) in self._places

    def read(self, key: bytes, group: int, n_bytes: int) -> bytes | None:
        """A page of `n_bytes`; None, and a line in the log, when it can't be read or is damaged."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._places[key, group][0])
                return read_record(file, (key, group), n_bytes)
        except (OSError, FileFormatError) as error:
            log.warning(f"{self.path} is not used any more: {error}")
            self._places.clear()
            return None


def write_page_file(path: Path, title: bytes, records: Iterable[tuple[bytes, int, Bytes]]) -> None:
    """Write a file of many records in the place of what is there. Raises CacheError."""
    try:
        with _replacing(path) as file:
            for key, group, page in ((bytes(KEY_BYTES), TITLE, title), *records):
                file.write(header(key, group, page))
                file.write(page)
    except OSError as error:
        raise CacheError(f"{path} can't be written: {error.strerror or error}") from None


class PageFolder:
    """A folder with a file for each record, and as many of them as fit into `limit` bytes.

    Those that were used longest ago go first, the end of a text before its beginning. Several
    processes may use one folder. Used by one thread at a time. Nothing here raises: a disk that is
    full, or a file that is damaged, costs what would have been saved, and a line in the log.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.folder, self.limit = folder, limit
        self.n_bytes = 0  # in files of ours, and in those of others when we last looked
        self._is_broken = not is_ours(folder)
        if self._is_broken:
            log.warning(f"no conversations are kept, as others can write to {folder}")
            return
        try:
            self._trim()
        except OSError as error:
            log.warning(f"no conversations are kept in {folder}: {error.strerror}")
            self._is_broken = True

    def has(self, key: bytes, group: int) -> bool:
        """Whether there is such a page."""
        return not self._is_broken and self._path(key, group).exists()

    def read(self, key: bytes, group: int, n_bytes: int) -> bytes | None:
        """A page of `n_bytes`; None when it is not there. A damaged file is deleted."""
        path = self._path(key, group)
        try:
            with path.open("rb") as file:
                return read_record(file, (key, group), n_bytes)
        except FileNotFoundError:
            return None
        except (OSError, FileFormatError) as error:
            log.warning(f"{path} is deleted: {error}")
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    def write(self, key: bytes, group: int, page: Bytes) -> bool:
        """Keep a page; whether that was done."""
        size = _HEADER.size + len(page)
        if self._is_broken or size > self.limit:
            return False
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _replacing(self._path(key, group)) as file:
                file.write(header(key, group, page))
                file.write(page)
        except OSError as error:
            log.warning(f"no more conversations are kept in {self.folder}: {error.strerror}")
            self._is_broken = True
            return False
        self.n_bytes += size
        if self.n_bytes > self.limit:
            with contextlib.suppress(OSError):  # the folder is gone: so are its files
                self._trim()
        return True

    def touch(self, names: Iterable[tuple[bytes, int, int]]) -> None:
        """These, each with the number of its page in its text, were used now."""
        now = time.time_ns()
        for key, group, number in names:
            used = now - 1000 * number
            with contextlib.suppress(OSError):  # it was deleted meanwhile
                os.utime(self._path(key, group), ns=(used, used))

    def usage(self) -> Usage:
        """How many files there are, and their bytes."""
        files = self._files()
        return Usage(len(files), sum(status.st_size for _, status in files))

    def _trim(self) -> None:
        """Deletes what was used longest ago until there is room again."""
        files = self._files()
        self.n_bytes = sum(status.st_size for _, status in files)
        room = self.limit if self.n_bytes <= self.limit else int(_ROOM * self.limit)
        now = time.time()
        for path, status in sorted(files, key=lambda file: file[1].st_mtime_ns):
            is_part, age_s = path.suffix == ".part", now - status.st_mtime
            if age_s > _KEPT_PART_S if is_part else self.n_bytes > room:
                with contextlib.suppress(OSError):
                    path.unlink()
                    self.n_bytes -= status.st_size

    def _files(self) -> list[tuple[Path, os.stat_result]]:
        found: list[tuple[Path, os.stat_result]] = []
        with contextlib.suppress(FileNotFoundError), os.scandir(self.folder) as entries:
            for entry in entries:
                if entry.name.endswith((".kv", ".part")):
                    with contextlib.suppress(FileNotFoundError):  # deleted by another process
                        found.append((Path(entry.path), entry.stat()))
        return found

    def _path(self, key: bytes, group: int) -> Path:
        return self.folder / f"{key.hex()}-{group}.kv"
