"""Deleting what is derived, and nothing else."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest

from satchel.files.caches import (
    bytes_below,
    cache_sizes,
    clear_caches,
    default_kv_bytes,
    kv_folder,
)


def test_only_derived_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path))
    assert clear_caches() == 0
    for name in ("models/m/m.gguf", "objects/a.o", "packed/w.weights", "mine/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345")
    assert cache_sizes() == {"models": 5, "objects": 5, "packed": 5, "kv": 0}
    assert clear_caches() == 10
    assert cache_sizes() == {"models": 5, "objects": 0, "packed": 0, "kv": 0}
    assert (tmp_path / "mine" / "notes.txt").exists()


def test_what_saved_pages_may_take_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "not" / "there"))
    disk = shutil.disk_usage(tmp_path)
    for free, expected in ((10 << 40, 1 << 30), (1 << 30, (1 << 30) // 10), (0, 0)):
        usage = disk._replace(free=free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, usage=usage: usage)
        assert default_kv_bytes() == expected
    kv_folder().mkdir(parents=True)
    (kv_folder() / "a.kv").write_bytes(bytes(1000))
    assert default_kv_bytes() == 100


def test_counting_where_others_make_and_delete(tmp_path: Path) -> None:
    (tmp_path / "stays").write_bytes(b"12345")
    stop = threading.Event()

    def churn() -> None:
        while not stop.is_set():
            (tmp_path / "a" / "b").mkdir(parents=True)
            (tmp_path / "a" / "b" / "c").write_bytes(b"1")
            shutil.rmtree(tmp_path / "a")

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert {bytes_below(tmp_path) for _ in range(2000)} <= {5, 6}
    finally:
        stop.set()
        thread.join()
