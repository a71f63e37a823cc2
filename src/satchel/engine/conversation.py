"""A conversation in files: its messages, and beside them what a model has computed of it.

The messages are JSON, for people and other programs too. The pages of the KV cache are in a file of
their own, whose name ends in ".kv": it can be deleted at any time, which costs time and no word.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from satchel.base import log
from satchel.base.errors import CacheError, FileFormatError, OptionError
from satchel.engine.ask import Message, read_messages
from satchel.files.page_files import PageFile, write_page_file

VERSION = 1  # of the messages' file


def write_messages(path: str | os.PathLike[str], messages: Sequence[Message]) -> None:
    """Writes messages in the place of what is there. Raises OptionError."""
    content = {"version": VERSION, "messages": messages}
    target = Path(path)
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
        part.replace(target)  # at once: what was there before is never half overwritten
    except OSError as error:
        raise OptionError(f"can't write {target}: {error.strerror}") from None


def saved_messages(path: str | os.PathLike[str]) -> list[Message]:
    """The messages of a file.

    Raises OptionError when it can't be read, FileFormatError when it is something else.
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"can't read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        content = None
    saved = cast("dict[str, Any]", content if isinstance(content, dict) else {})
    messages = saved.get("messages")
    if not isinstance(messages, list):
        raise FileFormatError(f"{path} is not a saved conversation")
    if saved.get("version") != VERSION:
        raise FileFormatError(f"{path} was saved by another version of Satchel")
    try:
        return read_messages(messages) if messages else []
    except OptionError as error:
        raise FileFormatError(f"{path}: {error}") from None


def write_pages(
    path: str | os.PathLike[str], fingerprint: str, pages: Sequence[tuple[bytes, int, bytes]]
) -> None:
    """Writes keys, groups and contents of pages beside the messages at `path`; no file for none.

    Where that fails the log says so: what counts has been saved.
    """
    beside = _pages_path(path)
    try:
        if pages:
            write_page_file(beside, fingerprint.encode(), pages)
        else:
            beside.unlink(missing_ok=True)
    except (CacheError, OSError) as error:
        log.warning(f"the messages are saved, but {error}; they will be computed again")


def saved_pages(path: str | os.PathLike[str], fingerprint: str) -> PageFile | None:
    """The pages beside the messages at `path`.

    None when there are none, or, as the log says then, none that are of use.
    """
    beside = _pages_path(path)
    if not beside.exists():
        return None
    try:
        found = PageFile(beside)
    except (CacheError, FileFormatError) as error:
        log.warning(f"the conversation is computed again: {error}")
        return None
    if found.title != fingerprint.encode():
        log.warning(
            f"the conversation is computed again: {beside} is of another model, or was computed "
            "on another machine or by another version of Satchel"
        )
        return None
    return found


def _pages_path(path: str | os.PathLike[str]) -> Path:
    return Path(path).with_name(f"{Path(path).name}.kv")
