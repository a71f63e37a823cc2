"""Thousands of damaged files: only Satchel's errors come out, and memory stays bounded."""

from __future__ import annotations

import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from satchel import formats
from satchel.base.errors import SatchelError
from satchel.files.checkpoint import open_checkpoint
from satchel.files.gguf import TensorData, write_gguf
from satchel.files.metadata import LazyArray

N_FILES = 6000
ODD_NUMBERS = (0, 1, 2, 3, 7, 8, 9, 255, 256, 0x7FFFFFFF, 1 << 31, 0xFFFFFFFF, 1 << 32, 1 << 40,
               (1 << 61) + 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 32, (1 << 64) - 1)  # fmt: skip


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """Small sound files of both kinds: many keys and few tensors, long arrays and many tensors."""
    folder = tmp_path_factory.mktemp("seeds")
    numbers = np.random.default_rng(0).standard_normal((4, 256)).astype(np.float32)
    tensors = {
        f"blk.{i}.{block.name}": TensorData.encoded(block, numbers)
        for i, block in enumerate(formats.FORMATS)
        if block.can_encode
    }
    keys = {
        "general.architecture": "llama",
        "general.alignment": 32,
        "llama.rope.freq_base": 10000.0,
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.scores": np.ones(9, np.float32),
        "flags": [True, False],
    }
    words = {"tokenizer.ggml.tokens": [f"token {i}" for i in range(300)], "wide": 1 << 40}
    write_gguf(folder / "keys.gguf", keys, tensors)
    write_gguf(folder / "arrays.gguf", keys | words, {"t": numbers}, version=2)
    return [path.read_bytes() for path in sorted(folder.iterdir())]


def damaged(content: bytes, random: random.Random) -> bytes:
    """A copy with one to three kinds of damage, mostly in the header."""
    data = bytearray(content)
    for _ in range(random.randint(1, 3)):
        place = random.randrange(min(len(data), 4000)) if data else 0
        match random.randrange(6):
            case 0 if data:
                data[place] ^= 1 << random.randrange(8)
            case 1:
                del data[random.randrange(len(data) + 1) :]
            case 2:
                number = struct.pack("<Q", random.choice(ODD_NUMBERS))
                data[place : place + 8] = number
            case 3:
                data[place : place + 4] = struct.pack("<I", random.choice(ODD_NUMBERS) & 0xFFFFFFFF)
            case 4:
                del data[place : place + random.randrange(1, 40)]
            case _:
                data[place:place] = random.randbytes(random.randrange(1, 20))
    return bytes(data)


def use_all(path: Path) -> None:
    """Open a model and touch whatever it holds."""
    checkpoint = open_checkpoint(path)
    for value in checkpoint.metadata.values():
        if isinstance(value, LazyArray):
            list(value)
    for tensor in checkpoint.tensors():
        checkpoint.raw(tensor.name).sum()
        tensor.format.decode(checkpoint.raw(tensor.name)[:1])
    assert checkpoint.fingerprint


def attack(path: Path, files: list[bytes]) -> int:
    """Open every one of the files; how many were refused."""
    messages: list[str] = []
    for content in files:
        path.unlink(missing_ok=True)  # not written over: a mapping of the last one may live on
        path.write_bytes(content)
        try:
            use_all(path)
        except SatchelError as error:
            messages.append(str(error))
    assert all(message and len(message.splitlines()) == 1 for message in messages)
    assert max(map(len, messages), default=0) < 1000
    return len(messages)


@pytest.mark.slow
def test_damaged_files_end_in_our_errors_and_little_memory(
    seeds: list[bytes], tmp_path: Path
) -> None:
    source = random.Random(7)
    files = [damaged(source.choice(seeds), source) for _ in range(N_FILES)]
    attack(tmp_path / "warm.gguf", seeds)  # what is imported late is not the files' memory
    tracemalloc.start()
    refused = attack(tmp_path / "fuzz.gguf", files)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert N_FILES // 3 < refused < N_FILES
    assert peak < 8 << 20


def test_every_header_number_set_to_every_odd_value(seeds: list[bytes], tmp_path: Path) -> None:
    """The counts, and each length, type and offset of the first keys, one at a time."""
    content = seeds[0]
    files = [
        content[:place] + struct.pack("<Q", number) + content[place + 8 :]
        for place in range(4, 84, 4)
        for number in ODD_NUMBERS
    ]
    assert attack(tmp_path / "fuzz.gguf", files) > len(files) // 2


@pytest.mark.slow
@pytest.mark.parametrize("model", ["smollm2", "gemma3"])
def test_damaged_heads_of_real_files(
    model: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Real headers, cut and overwritten at random; the tensors' data never fits."""
    path: Path = request.getfixturevalue(model)
    with path.open("rb") as file:
        head = file.read(1 << 20)
    source = random.Random(11)
    files = [damaged(head, source) for _ in range(150)]
    assert attack(tmp_path / "fuzz.gguf", files) == len(files)
