"""A process that the system gives no more memory: errors of one line, and it lives on."""

from __future__ import annotations

import errno
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.test_api import make, says

from satchel.base.errors import FileFormatError, MemoryLimitError, in_one_line, lack_in_one_line
from satchel.files.checkpoint import open_checkpoint
from satchel.files.gguf import mmap

CHILD = """
import resource, sys
import satchel
from satchel.errors import MemoryLimitError

model, limit, field = sys.argv[1:]
llm = satchel.load(model, context=1024, parallel=1, threads=2)
first = llm.generate("The sea is", max_tokens=8, temperature=0).text
with open("/proc/self/status") as file:
    now = next(int(line.split()[1]) for line in file if line.startswith(field))
most = (now << 10) + (160 << 20)
resource.setrlimit(getattr(resource, limit), (most, most))

def refused(work):
    try:
        work()
    except MemoryLimitError as error:
        assert str(error).count("\\\\n") == 0
        return True
    return False

for _ in range(3):
    assert refused(lambda: satchel.load(model, context=8192, parallel=4))
    assert refused(lambda: llm.logits([1] * 1000))
    assert llm.generate("The sea is", max_tokens=8, temperature=0).text == first
llm.embed(["The sea is", "a sea of words"])
assert llm.generate("The sea is", max_tokens=8, temperature=0).text == first
llm.close()
print("lives")
"""


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    @pytest.mark.parametrize(
        ("limit", "field"), [("RLIMIT_DATA", "VmData"), ("RLIMIT_AS", "VmSize")]
    )
    def test_a_process_with_a_limit_lives_on(smollm2: Path, limit: str, field: str) -> None:
        words = [sys.executable, "-c", CHILD.replace("\\\\", "\\"), str(smollm2), limit, field]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        assert (done.stdout, done.returncode) == ("lives\n", 0), done.stderr
        assert "Traceback" not in done.stderr


def test_what_lacks_memory_is_told_in_one_line() -> None:
    assert isinstance(in_one_line(MemoryError()), MemoryLimitError)
    assert isinstance(in_one_line(OSError(errno.ENOMEM, "no")), MemoryLimitError)
    other = OSError(errno.EACCES, "no")
    assert in_one_line(other) is other
    with pytest.raises(MemoryLimitError, match="no more memory"), lack_in_one_line():
        raise MemoryError
    with pytest.raises(OSError, match="no"), lack_in_one_line():
        raise other


def test_a_file_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")

    def fails(code: int) -> Any:
        def map_(*_: Any, **__: Any) -> Any:
            raise OSError(code, "no")

        return map_

    monkeypatch.setattr(mmap, "mmap", fails(errno.ENOMEM))
    with pytest.raises(MemoryLimitError):
        open_checkpoint(path)
    monkeypatch.setattr(mmap, "mmap", fails(errno.EIO))
    with pytest.raises(FileFormatError, match="can't be read"):
        open_checkpoint(path)


def test_a_step_without_memory_fails_its_requests_alone() -> None:
    with make(says("x")) as llm:
        llm._speaker.model.error = MemoryError()  # type: ignore[attr-defined]
        with pytest.raises(MemoryLimitError, match="no more memory"):
            llm.generate("Say:", temperature=0)
        assert llm.generate("Say:", temperature=0).text == "x"


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def no_map(*_: Any) -> Any:
    raise OSError(errno.ENOMEM, "no")


lacks = pytest.mark.parametrize(
    ("owner", "name", "fails"), [(threading.Thread, "start", no_thread), (mmap, "mmap", no_map)]
)


@lacks
def test_no_room_for_a_thread(
    owner: Any, name: str, fails: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(says("x")) as llm:
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fails)
            with pytest.raises(MemoryLimitError, match="one more thread"):
                llm.generate("Say:", temperature=0)
        assert llm.generate("Say:", temperature=0).text == "x"
        assert llm.usage().waiting == 0


@lacks
def test_no_room_for_a_guides_thread(
    owner: Any, name: str, fails: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither before the first token nor between two is it an error of anyone else."""
    with make(says("xx")) as llm:
        other = llm.stream("Say:", temperature=0, max_tokens=1)  # its thread is there
        other.result()
        with monkeypatch.context() as patched:
            patched.setattr(owner, name, fails)
            with pytest.raises(MemoryLimitError, match="one more thread"):
                llm.generate("Say:", temperature=0, regex="x+")
        assert llm.generate("Say:", temperature=0, regex="x+", max_tokens=2).text == "xx"
