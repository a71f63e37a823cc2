"""Files of the Hugging Face hub: found in its cache and used where they lie, or fetched into it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from satchel.base.errors import DownloadError, ModelNotFoundError
from satchel.files.references import Repository, choose, split_names


def find(cache: Path, wanted: Repository) -> Path | None:
    """The file in the hub's cache, when it and all parts of its split are there; else None."""
    snapshot = _snapshot(cache / ("models--" + wanted.repo.replace("/", "--")))
    if snapshot is None:
        return None
    # an unfinished download is a link to nothing
    files = [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*.gguf") if p.exists()]
    try:
        path = snapshot / choose(files, wanted.wanted, wanted.repo)
    except ModelNotFoundError:
        return None
    complete = all(path.with_name(part).exists() for part in split_names(path.name))
    return path if complete else None


def listing(cache: Path) -> Iterator[tuple[str, Path]]:
    """Every whole GGUF file of the hub's cache: its reference, and where it lies."""
    for folder in sorted(cache.glob("models--*--*")):
        repo = folder.name.removeprefix("models--").replace("--", "/", 1)
        snapshot = _snapshot(folder)
        for path in sorted(snapshot.rglob("*.gguf")) if snapshot else ():
            parts = split_names(path.name)
            if path.name == parts[0] and all(path.with_name(part).exists() for part in parts):
                yield f"hf:{repo}:{path.relative_to(snapshot or path).as_posix()}", path


def _snapshot(folder: Path) -> Path | None:
    """The newest revision of a cached repository: refs/main names its folder under snapshots/."""
    try:
        revision = (folder / "refs" / "main").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return None
    path = folder / "snapshots" / revision
    return path if path.is_dir() else None


Report = Callable[[int, int | None], None]
"""Is told of the bytes that are there, and of those of the whole, None where no one knows."""


def fetch(wanted: Repository, report: Report | None = None) -> Path:
    """Downloads the file by huggingface_hub, whose HF_* variables, token and cache hold.

    `report`: see `store.resolve`. Raises DownloadError; ModelNotFoundError when the repository has
    no such file.
    """
    try:
        from huggingface_hub import (
            HfApi,
            hf_hub_download,  # pyright: ignore[reportUnknownVariableType]
        )
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    except ImportError:
        raise DownloadError(
            f"hf:{wanted.repo} is not in the cache, and fetching it needs one more package: "
            "pip install satchel[hf]"
        ) from None
    # the base is the HTTP library's own error, whichever library this version of the hub uses
    http_error: type[Exception] = HfHubHTTPError.__bases__[0]
    try:
        name = choose(HfApi().list_repo_files(wanted.repo), wanted.wanted, wanted.repo)
        first = Path(name)
        parts = [first.with_name(part).as_posix() for part in split_names(first.name)]
        bar = None if report is None else _bar_for(report)
        paths = [hf_hub_download(wanted.repo, part, tqdm_class=bar) for part in parts]
    except (OSError, ValueError, EntryNotFoundError, http_error) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise DownloadError(f"hf:{wanted.repo}: {lines[0]}") from None
    return Path(paths[0])


def _bar_for(report: Report) -> type[Any]:
    """A progress bar, as huggingface_hub makes them, that reports and draws nothing. The parts of a
    split file count together; how large the next ones are is known when they begin.
    """
    from huggingface_hub import utils

    done = total = 0
    base: type[Any] = utils.tqdm  # pyright: ignore[reportUnknownMemberType]

    class Bar(base):
        def __init__(self, *given: Any, **named: Any) -> None:
            nonlocal done, total
            super().__init__(*given, **(named | {"disable": True}))  # pyright: ignore[reportUnknownMemberType]
            done += named.get("initial") or 0
            total += named.get("total") or 0

        def update(self, n: float | None = 1) -> bool | None:
            nonlocal done
            done += int(n or 0)
            report(done, max(done, total) if total else None)
            return None

    return Bar
