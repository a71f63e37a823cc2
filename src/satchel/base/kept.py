"""Small files that are kept between runs: a reader sees the old text or the new one, whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from satchel.base.errors import CacheError


def keep_json(path: Path, content: dict[str, Any]) -> None:
    """Write content in the place of what is there, and its folder if need be. Raises CacheError."""
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    except OSError as error:
        raise CacheError(f"{path} can't be written: {error.strerror or error}") from None


def is_ours(folder: Path) -> bool:
    """Whether only this user can write to a folder, or it is not there yet."""
    try:
        status = folder.stat()
    except OSError:
        return True
    return not hasattr(os, "getuid") or (
        status.st_uid == os.getuid() and not status.st_mode & 0o002
    )
