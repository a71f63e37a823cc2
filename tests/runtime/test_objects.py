"""The object cache: whole entries or none, whoever writes and whatever breaks."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import KernelError
from satchel.runtime import objects
from satchel.runtime.objects import ObjectCache, Request, Usage, build_objects, object_key

KEY = object_key("source", "target")
DATA = b"machine code" * 100


def entry(cache_dir: Path, key: str = KEY) -> Path:
    return cache_dir / "objects" / f"{key}.o"


def test_store_and_load(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "deep" / "down")
    assert cache.load(KEY) is None
    cache.store(KEY, DATA)
    assert cache.load(KEY) == DATA
    assert ObjectCache(tmp_path / "deep" / "down").load(KEY) == DATA
    cache.store(KEY, b"")
    assert cache.load(KEY) == b""
    assert cache.usage() == Usage(1, entry(tmp_path / "deep" / "down").stat().st_size)
    assert cache.clear().n_objects == 1
    assert cache.usage() == Usage(0, 0)
    assert cache.load(KEY) is None


@given(st.lists(st.text(max_size=5), max_size=4), st.lists(st.text(max_size=5), max_size=4))
def test_keys_differ_when_parts_differ(a: list[str], b: list[str]) -> None:
    assert (object_key(*a) == object_key(*b)) == (a == b)


def test_keys_know_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_compiler", lambda: "another LLVM")
    assert object_key("source", "target") != KEY


@pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "empty", "foreign", "text"])
def test_damage_is_noticed_and_rebuilt(tmp_path: Path, damage: str) -> None:
    cache, other = ObjectCache(tmp_path), object_key("other")
    cache.store(KEY, DATA)
    cache.store(other, DATA)
    path = entry(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(
        {
            "flip": raw[:-5] + bytes([raw[-5] ^ 1]) + raw[-4:],
            "truncate": raw[:-1],
            "extend": raw + b"\0",
            "empty": b"",
            "foreign": entry(tmp_path, other).read_bytes(),
            "text": b"not ours",
        }[damage]
    )
    assert cache.load(KEY) is None
    made = build_objects([Request(KEY, lambda: DATA)], cache)
    assert made == {KEY: DATA}
    assert cache.load(KEY) == DATA


def test_without_a_directory() -> None:
    cache = ObjectCache(None)
    cache.store(KEY, DATA)
    assert cache.load(KEY) is None
    assert cache.usage() == cache.clear() == Usage(0, 0)


@pytest.mark.parametrize("way", ["not a directory", "full", "read-only"])
def test_a_disk_that_fails(
    tmp_path: Path,
    way: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """No cache, one line on stderr, and everything works."""
    if way == "not a directory":
        (tmp_path / "objects").write_text("a file")
    if way == "full":

        def full(path: Path, raw: bytes) -> int:
            with path.open("wb") as stream:
                stream.write(raw[:10])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(Path, "write_bytes", full)
    if way == "read-only":

        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EROFS, os.strerror(errno.EROFS))

        monkeypatch.setattr(Path, "mkdir", refuse)
    cache = ObjectCache(tmp_path)
    for i in range(3):
        request = Request(object_key(str(i)), lambda: DATA)
        assert build_objects([request], cache) == {request.key: DATA}
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "no kernels are cached" in err
    assert not list(tmp_path.rglob("*.tmp"))


def test_code_that_others_may_have_written(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    ObjectCache(tmp_path).store(KEY, DATA)
    entry(tmp_path).parent.chmod(0o777)
    cache = ObjectCache(tmp_path)
    assert cache.load(KEY) is None
    assert "others can write" in capfd.readouterr().err
    assert entry(tmp_path).parent.stat().st_mode & 0o777 == 0o777
    entry(tmp_path).parent.chmod(0o700)
    assert ObjectCache(tmp_path).load(KEY) == DATA


RACE = """
import sys
from satchel.runtime.objects import ObjectCache, object_key
cache = ObjectCache(sys.argv[1])
key, data = object_key("raced"), b"x" * 300_000
for i in range(200):
    cache.store(key, data)
    assert cache.load(key) in (data, None) and cache.load(key) == data, i
"""


@pytest.mark.slow
def test_two_processes_race(tmp_path: Path) -> None:
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(tmp_path)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stderr=subprocess.PIPE,
        )
        for _ in range(2)
    ]
    for racer in racers:
        _, err = racer.communicate(timeout=120)
        assert (racer.returncode, err) == (0, b"")
    assert ObjectCache(tmp_path).usage().n_objects == 1


@pytest.mark.parametrize("n_workers", [1, 2, 5])
def test_only_what_is_missing_is_made(tmp_path: Path, n_workers: int) -> None:
    cache = ObjectCache(tmp_path)
    cache.store(object_key("0"), b"cached")
    requests = [Request(object_key(str(i)), lambda i=i: bytes([i]) * 70_000) for i in range(20)]
    made = build_objects(requests, cache, n_workers)
    assert made == {object_key(str(i)): bytes([i]) * 70_000 if i else b"cached" for i in range(20)}
    assert build_objects(requests, cache, n_workers) == made
    assert cache.usage().n_objects == 20


def test_a_key_asked_for_twice_is_made_once() -> None:
    calls: list[int] = []

    def make() -> bytes:
        calls.append(1)
        return DATA

    assert build_objects([Request(KEY, make), Request(KEY, make)], ObjectCache(None)) == {KEY: DATA}
    assert len(calls) == 1


if hasattr(os, "fork"):

    def test_even_a_lone_one_is_made_elsewhere() -> None:
        """So that this process does not load LLVM, which would stay in it."""
        make = Request(KEY, lambda: str(os.getpid()).encode())
        assert build_objects([make], ObjectCache(None), 2) != {KEY: make.make()}


@pytest.mark.parametrize("n_workers", [1, 3])
def test_errors_of_making_come_out(n_workers: int) -> None:
    def refuse() -> bytes:
        raise KernelError("no rule for this op")

    requests = [Request("a", lambda: DATA), Request("b", refuse), Request("c", lambda: DATA)]
    with pytest.raises(KernelError, match="no rule"):
        build_objects(requests, ObjectCache(None), n_workers)


def test_a_compiler_that_dies_is_an_error() -> None:
    def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)

    requests = [Request("a", lambda: DATA), Request("b", die), Request("c", lambda: DATA)]
    with pytest.raises(KernelError, match="died"):
        build_objects(requests, ObjectCache(None), 2)


def test_readers_and_writers_in_threads(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    seen: set[bytes | None] = set()

    def work(data: bytes) -> None:
        for _ in range(100):
            cache.store(KEY, data)
            seen.add(cache.load(KEY))

    threads = [threading.Thread(target=work, args=(bytes([i]) * 5000,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen <= {bytes([i]) * 5000 for i in range(4)}
