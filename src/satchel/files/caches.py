"""What Satchel derives from models and keeps: compiled kernels, packed weights. Safe to delete."""

from __future__ import annotations

import shutil
from pathlib import Path

from satchel.base.errors import CacheError
from satchel.base.options import options

DERIVED = ("objects", "packed")  # folders of the cache directory; `models` is not derived


def cache_sizes() -> dict[str, int]:
    """The bytes that each folder of the cache directory holds, the models too."""
    root = options().cache_dir
    return {name: _bytes_below(root / name) for name in ("models", *DERIVED)}


def clear_caches() -> int:
    """Deletes what is derived, and no model; the bytes freed. Raises CacheError."""
    root = options().cache_dir
    freed = 0
    for name in DERIVED:
        size = _bytes_below(root / name)
        try:
            if (root / name).is_dir():
                shutil.rmtree(root / name)
        except OSError as error:
            raise CacheError(f"{root / name} can't be deleted: {error.strerror}") from None
        freed += size
    return freed


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue  # another process finished its temporary file
    return total
