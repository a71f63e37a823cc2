"""Saved pages come back whole, or not at all."""

from __future__ import annotations

import errno
import os
import random
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from satchel.base.errors import CacheError, FileFormatError
from satchel.files.page_files import KEY_BYTES, PageFile, PageFolder, write_page_file

KEYS = [bytes([n]) * KEY_BYTES for n in range(8)]
PAGE = bytes(range(200))
RECORD = 56 + len(PAGE)


def folder(tmp_path: Path, n_pages: int = 100) -> PageFolder:
    return PageFolder(tmp_path / "kv", n_pages * RECORD)


def test_pages_come_back_and_outlive_the_process(tmp_path: Path) -> None:
    pages = folder(tmp_path)
    assert pages.write(KEYS[0], 0, PAGE)
    assert pages.write(KEYS[0], 1, memoryview(PAGE[::-1]))
    later = folder(tmp_path)
    assert later.read(KEYS[0], 0, len(PAGE)) == PAGE
    assert later.read(KEYS[0], 1, len(PAGE)) == PAGE[::-1]
    assert later.has(KEYS[0], 1)
    assert not later.has(KEYS[1], 0)
    assert later.read(KEYS[1], 0, len(PAGE)) is None
    assert (later.usage().n_files, later.usage().bytes) == (2, 2 * RECORD)


def test_no_one_else_can_read_them(tmp_path: Path) -> None:
    pages = folder(tmp_path)
    pages.write(KEYS[0], 0, PAGE)
    (file,) = pages.folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert pages.folder.stat().st_mode & 0o777 == 0o700


@settings(max_examples=60, deadline=None)
@given(place=st.integers(0, RECORD - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found_and_the_file_dropped(
    tmp_path_factory: pytest.TempPathFactory, place: int, bit: int
) -> None:
    pages = folder(tmp_path_factory.mktemp("flip"))
    pages.write(KEYS[0], 0, PAGE)
    (file,) = pages.folder.iterdir()
    raw = bytearray(file.read_bytes())
    raw[place] ^= 1 << bit
    file.write_bytes(raw)
    assert pages.read(KEYS[0], 0, len(PAGE)) is None
    assert not file.exists()


@pytest.mark.parametrize("length", [0, 10, 55, 56, RECORD - 1])
def test_a_file_that_was_cut_is_dropped_with_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], length: int
) -> None:
    pages = folder(tmp_path)
    pages.write(KEYS[0], 0, PAGE)
    (file,) = pages.folder.iterdir()
    file.write_bytes(file.read_bytes()[:length])
    assert pages.read(KEYS[0], 0, len(PAGE)) is None
    assert not file.exists()
    assert capsys.readouterr().err.count("\n") == 1


def test_a_file_under_anothers_name_or_of_another_size_is_dropped(tmp_path: Path) -> None:
    pages = folder(tmp_path)
    pages.write(KEYS[0], 0, PAGE)
    (file,) = pages.folder.iterdir()
    file.rename(file.with_name(f"{KEYS[1].hex()}-0.kv"))
    assert pages.read(KEYS[1], 0, len(PAGE)) is None
    pages.write(KEYS[2], 0, PAGE)
    assert pages.read(KEYS[2], 0, len(PAGE) + 1) is None
    assert pages.usage().n_files == 0


def test_what_was_used_longest_ago_goes_first_and_ends_before_beginnings(tmp_path: Path) -> None:
    pages = folder(tmp_path, n_pages=6)
    for text in (KEYS[:3], KEYS[3:6]):
        for key in text:
            pages.write(key, 0, PAGE)
        pages.touch((key, 0, number) for number, key in enumerate(text))
    pages.touch((key, 0, number) for number, key in enumerate(KEYS[:3]))
    pages.write(KEYS[6], 0, PAGE)
    left = [pages.has(key, 0) for key in KEYS[:7]]
    assert left == [True, True, True, True, False, False, True]
    assert pages.n_bytes == pages.usage().bytes <= pages.limit


def test_the_limit_holds_what_others_wrote_too(tmp_path: Path) -> None:
    for _ in range(3):
        pages = folder(tmp_path, n_pages=4)
        for key in KEYS:
            pages.write(key, 0, PAGE)
    assert folder(tmp_path, n_pages=4).usage().bytes <= 4 * RECORD
    assert folder(tmp_path, n_pages=2).usage().n_files <= 2
    assert not folder(tmp_path, n_pages=0).write(KEYS[0], 0, PAGE)


def test_a_full_disk_costs_the_page_and_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = folder(tmp_path)
    pages.write(KEYS[0], 0, PAGE)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        assert not pages.write(KEYS[1], 0, PAGE)
        assert not pages.write(KEYS[2], 0, PAGE)
    assert capsys.readouterr().err.count("No space left") == 1
    assert folder(tmp_path).usage().n_files == 1
    assert folder(tmp_path).read(KEYS[0], 0, len(PAGE)) == PAGE


def test_a_folder_that_others_can_write_to_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = folder(tmp_path)
    pages.write(KEYS[0], 0, PAGE)
    pages.folder.chmod(0o777)
    open_to_all = folder(tmp_path)
    assert not open_to_all.has(KEYS[0], 0)
    assert not open_to_all.write(KEYS[1], 0, PAGE)
    assert "others can write" in capsys.readouterr().err


def test_a_folder_that_is_none_is_not_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kv").write_text("a file of someone's")
    assert not folder(tmp_path).write(KEYS[0], 0, PAGE)
    assert capsys.readouterr().err.count("\n") == 1
    assert (tmp_path / "kv").read_text() == "a file of someone's"


def test_a_folder_that_goes_away_is_made_again(tmp_path: Path) -> None:
    pages = folder(tmp_path)
    pages.write(KEYS[0], 0, PAGE)
    shutil.rmtree(pages.folder)
    assert not pages.has(KEYS[0], 0)
    assert pages.read(KEYS[0], 0, len(PAGE)) is None
    assert pages.write(KEYS[1], 0, PAGE)


def test_several_may_use_one_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def work(seed: int) -> bool:
        pages, draw, fine = folder(tmp_path, n_pages=5), random.Random(seed), True
        for _ in range(150):
            key = draw.choice(KEYS)
            if draw.random() < 0.5:
                pages.write(key, 0, key * 5)
            else:
                fine = fine and pages.read(key, 0, 160) in (None, key * 5)
            pages.touch([(key, 0, draw.randrange(9))])
        return fine

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))
    assert capsys.readouterr().err == ""
    assert not list((tmp_path / "kv").glob("*.part"))


def test_a_file_of_many(tmp_path: Path) -> None:
    path = tmp_path / "chat.kv"
    write_page_file(path, b"what it is", [(KEYS[0], 0, PAGE), (KEYS[0], 1, PAGE[:9])])
    file = PageFile(path)
    assert file.title == b"what it is"
    assert file.has(KEYS[0], 1)
    assert not file.has(KEYS[1], 0)
    assert file.read(KEYS[0], 0, len(PAGE)) == PAGE
    assert file.read(KEYS[0], 1, 9) == PAGE[:9]
    assert [found.name for found in tmp_path.iterdir()] == ["chat.kv"]


def test_a_file_of_many_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "chat.kv"
    write_page_file(path, b"what it is", [(KEYS[0], 0, PAGE), (KEYS[1], 0, PAGE)])
    whole = path.read_bytes()
    for length in (0, 7, 60, 100, 56 + 10 + RECORD + 20, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileFormatError, match=r"chat\.kv: it ends in the middle"):
            PageFile(path)


def test_a_file_of_many_that_is_damaged_gives_no_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.kv"
    write_page_file(path, b"", [(KEYS[0], 0, PAGE), (KEYS[1], 0, PAGE)])
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    file = PageFile(path)
    assert file.read(KEYS[0], 0, len(PAGE)) == PAGE
    assert file.read(KEYS[1], 0, len(PAGE)) is None
    assert not file.has(KEYS[0], 0)
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"x" * 100, "not pages"), (b"satchelK\x63\x00" + bytes(60), "version 99"), (b"", "ends")],
)
def test_foreign_and_later_files_are_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "chat.kv"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match=says):
        PageFile(path)


def test_a_file_that_is_not_there_or_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="can't be read: No such file"):
        PageFile(tmp_path / "none.kv")
    with pytest.raises(CacheError, match="can't be written"):
        write_page_file(tmp_path / "none" / "chat.kv", b"", [])
