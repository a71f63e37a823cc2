"""The level below memory: pages of texts on disk, which outlive the process that computed them.

A full page is known by its key, a hash of the model and of all tokens up to the page's end. So what
is found by a key is what would be computed, down to the last bit: another model, file, machine's
target or type of cache has other keys. Tokens behind the last full page are computed again.

Reading is worth it when it takes less time than computing; so is writing what memory has no room
for, when that and reading it back take less. Both by what was measured in this process; what was
not measured yet counts as worth it.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from satchel.files.page_files import KEY_BYTES, PageFile, PageFolder
from satchel.runtime.batch import PAGE, Model

if TYPE_CHECKING:
    from satchel.engine.pace import Pace

_NEW = 0.2  # how much the last page's time counts


class Saved:
    """Finds, reads and writes the pages of one model. Used by the engine's thread."""

    def __init__(self, model: Model, folder: PageFolder | None = None) -> None:
        """`folder` keeps what was computed; without one, pages come from `files` alone."""
        self.model, self.folder = model, folder
        self.files: tuple[PageFile, ...] = ()  # replaced, never changed: any thread may do that
        self.read_s: float | None = None  # a byte's
        self.write_s: float | None = None
        self.n_read = 0  # pages
        self.n_written = 0
        self.whole = [g for g, group in enumerate(model.groups) if group.window is None]
        self.windows = [g for g, group in enumerate(model.groups) if group.window is not None]

    @cached_property
    def root(self) -> bytes:
        """The key of no tokens at all; made when asked for, as few programs save anything."""
        return hashlib.blake2b(self.model.fingerprint.encode(), digest_size=KEY_BYTES).digest()

    def add(self, file: PageFile) -> None:
        """Finds pages in a file too. Any thread may call this."""
        self.files = (*self.files, file)

    def remove(self, file: PageFile) -> None:
        """Looks no more into a file. Any thread may call this."""
        self.files = tuple(one for one in self.files if one is not file)

    def keys(self, tokens: Sequence[int], most: int) -> list[bytes]:
        """The keys of the full pages among the first `most` tokens."""
        keys, key = list[bytes](), self.root
        for end in range(PAGE, min(most, len(tokens)) + 1, PAGE):
            key = next_key(key, tokens[end - PAGE : end])
            keys.append(key)
        return keys

    def reach(self, n_pages: int, begin: int, has: Callable[[int, int], bool]) -> int:
        """How many of a text's `n_pages` pages one can go on behind when the first `begin` are
        known, and of the others those of which `has` says so, by their place and group.
        """
        n = begin
        while n < n_pages and all(has(n, group) for group in self.whole):
            n += 1
        while n > begin and not all(
            has(place, group)
            for group in self.windows
            for place in range(n - 1, max(begin, self.first(group, n)) - 1, -1)
        ):
            n -= 1
        return n

    def first(self, group: int, n_pages: int) -> int:
        """The first page that is seen from behind the first `n_pages`."""
        return min(n_pages, self.model.groups[group].first_seen(n_pages * PAGE) // PAGE)

    @property
    def is_empty(self) -> bool:
        """Whether there is nowhere to look."""
        return self.folder is None and not self.files

    def is_worth_reading(self, n_tokens: int, n_bytes: int, pace: Pace) -> bool:
        """Whether to read so many bytes takes less time than to compute so many tokens."""
        return not pace.token_s or n_bytes * (self.read_s or 0) < pace.seconds(n_tokens)

    def is_worth_writing(self, pace: Pace) -> bool:
        """The same of a page of all groups, to be read when it is wanted again."""
        n_bytes = sum(group.page_bytes for group in self.model.groups)
        seconds = n_bytes * ((self.write_s or 0) + (self.read_s or 0))
        return not pace.token_s or seconds < pace.seconds(PAGE)

    def read(self, key: bytes, group: int) -> bytes | None:
        """A page; None when it is gone, or was damaged and is gone now."""
        n_bytes, begun_s = self.model.groups[group].page_bytes, time.perf_counter()
        sources = [file for file in self.files if file.has(key, group)]
        page = None
        for source in (*sources, *([self.folder] if self.folder else [])):
            page = source.read(key, group, n_bytes)
            if page is not None:
                self.n_read += 1
                self.read_s = _average(self.read_s, (time.perf_counter() - begun_s) / n_bytes)
                break
        return page

    def write(self, key: bytes, group: int, page: int) -> int:
        """Saves the content of a page in memory, where it is not saved yet; the bytes written."""
        if self.folder is None or self.folder.has(key, group):
            return 0
        begun_s, content = time.perf_counter(), self.model.read_page(group, page)
        if not self.folder.write(key, group, content):
            return 0
        self.n_written += 1
        self.write_s = _average(self.write_s, (time.perf_counter() - begun_s) / len(content))
        return len(content)

    def touch(self, keys: Sequence[bytes]) -> None:
        """A text with these pages was used now."""
        if self.folder:
            n = len(keys)
            self.folder.touch(
                (key, group, place)
                for group in (*self.whole, *self.windows)
                for place, key in enumerate(keys)
                if place >= self.first(group, n)
            )

    def has(self, key: bytes, group: int) -> bool:
        """Whether a page is on disk."""
        return any(file.has(key, group) for file in self.files) or (
            self.folder is not None and self.folder.has(key, group)
        )


def next_key(key: bytes, tokens: Sequence[int]) -> bytes:
    """The key of the page of these tokens, behind the page of `key`."""
    return hashlib.blake2b(key + array("i", tokens).tobytes(), digest_size=KEY_BYTES).digest()


def _average(known: float | None, new: float) -> float:
    return new if known is None else known + _NEW * (new - known)
