"""A checkpoint says what it is, and names what it lacks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from satchel.base.errors import FileFormatError
from satchel.files.checkpoint import open_checkpoint
from satchel.files.gguf import write_gguf, write_split_gguf

KEYS = {"general.architecture": "llama", "llama.block_count": 1}
TENSORS = {"a": np.ones((2, 3), np.float32), "rope_freqs.weight": np.ones(4, np.float32)}


def test_a_checkpoint_tells_what_it_holds(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", KEYS, TENSORS)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    assert checkpoint.arch == "llama"
    assert checkpoint.names == ("a", "rope_freqs.weight")
    assert "a" in checkpoint
    assert "output.weight" not in checkpoint
    assert checkpoint.tensor("a").shape == (2, 3)
    assert (checkpoint.n_weights, checkpoint.n_bytes) == (10, 40)
    np.testing.assert_array_equal(checkpoint.raw("a").view("<f4"), TENSORS["a"])
    assert checkpoint.metadata.get_int("llama.block_count") == 1


def test_a_split_checkpoint_knows_its_files(tmp_path: Path) -> None:
    paths = write_split_gguf(tmp_path / "m.gguf", KEYS, TENSORS, 2)
    checkpoint = open_checkpoint(paths[0])
    assert checkpoint.paths == tuple(paths)
    assert checkpoint.names == tuple(TENSORS)


def test_missing_tensors_are_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", KEYS, TENSORS)
    checkpoint = open_checkpoint(tmp_path / "m.gguf")
    with pytest.raises(FileFormatError, match=r"tensor 'output\.weight' is missing"):
        checkpoint.tensor("output.weight")
    with pytest.raises(FileFormatError, match=r"no tensor 'output\.weight'"):
        checkpoint.raw("output.weight")


@pytest.mark.parametrize(
    ("keys", "message"),
    [({}, "'general.architecture' is missing"), ({"general.architecture": 3}, "must be a string")],
)
def test_the_architecture_must_be_said(tmp_path: Path, keys: dict[str, int], message: str) -> None:
    write_gguf(tmp_path / "m.gguf", keys, TENSORS)
    with pytest.raises(FileFormatError, match=message):
        open_checkpoint(tmp_path / "m.gguf")


def test_a_file_without_tensors_is_no_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", KEYS, {})
    with pytest.raises(FileFormatError, match="holds no tensors"):
        open_checkpoint(tmp_path / "m.gguf")
