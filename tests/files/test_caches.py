"""Deleting what is derived, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from satchel.files.caches import cache_sizes, clear_caches


def test_only_derived_files_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path))
    assert clear_caches() == 0
    for name in ("models/m/m.gguf", "objects/a.o", "packed/w.weights", "mine/notes.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True)
        path.write_bytes(b"12345")
    assert cache_sizes() == {"models": 5, "objects": 5, "packed": 5}
    assert clear_caches() == 10
    assert cache_sizes() == {"models": 5, "objects": 0, "packed": 0}
    assert (tmp_path / "mine" / "notes.txt").exists()
