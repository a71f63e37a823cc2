"""A small file is written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from satchel.base.errors import CacheError
from satchel.base.kept import keep_json


def test_it_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "a.json"
    keep_json(path, {"n": 1})
    keep_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 2}
    assert list(path.parent.iterdir()) == [path]


def test_where_it_can_not_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(CacheError, match=r"a\.json can't be written"):
        keep_json(tmp_path / "file" / "a.json", {})


def test_what_fails_on_the_way_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    keep_json(path, {"n": 1})

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(CacheError, match="No space left"):
        keep_json(path, {"n": 2})
    assert json.loads(path.read_text()) == {"n": 1}
    assert list(tmp_path.iterdir()) == [path]
