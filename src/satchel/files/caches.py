"""What Satchel derives from models and keeps: compiled kernels, packed weights, saved pages of
conversations. Safe to delete.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from satchel.base.errors import CacheError
from satchel.base.options import options

DERIVED = ("objects", "packed", "kv")  # folders of the cache directory; `models` is not derived

_KV_BYTES = 1 << 30
_KV_SHARE = 10  # of the disk's free bytes, one in so many


def cache_sizes() -> dict[str, int]:
    """The bytes that each folder of the cache directory holds, the models too."""
    root = options().cache_dir
    return {name: bytes_below(root / name) for name in ("models", *DERIVED)}


def clear_caches() -> int:
    """Deletes what is derived, and no model; the bytes freed. Raises CacheError."""
    root = options().cache_dir
    freed = 0
    for name in DERIVED:
        size = bytes_below(root / name)
        try:
            if (root / name).is_dir():
                shutil.rmtree(root / name)
        except OSError as error:
            raise CacheError(f"{root / name} can't be deleted: {error.strerror}") from None
        freed += size
    return freed


def kv_folder() -> Path:
    """Where the pages of conversations are saved."""
    return options().cache_dir / "kv"


def default_kv_bytes() -> int:
    """What saved pages may take unless the user says otherwise: 1 GiB, or a tenth of what is free
    on the disk and what they take already, if that is less.
    """
    folder = kv_folder()
    there = next((one for one in (folder, *folder.parents) if one.is_dir()), None)
    if there is None:
        return 0
    return min(_KV_BYTES, (shutil.disk_usage(there).free + bytes_below(folder)) // _KV_SHARE)


def bytes_below(folder: Path) -> int:
    """The bytes of all files in a folder and its folders, while others may write and delete there.

    Of what goes away between two looks nothing is counted.
    """
    total = 0
    for place, _, files in os.walk(folder):  # unlike rglob, it passes over a folder that is gone
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(place, name)).st_size
    return total
