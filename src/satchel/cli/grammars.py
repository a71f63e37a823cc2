"""What the flags say that an answer must be: texts, or files that hold them."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from satchel.base.errors import OptionError


def grammar_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options json_schema, regex, grammar and choice, as far as flags ask for them.

    Raises OptionError for a file that can't be read, and for a text beside a file.
    """
    schema, grammar = args.json_schema, args.grammar
    if schema is not None and not _is_json(schema):
        schema = _read("--json-schema", schema)
    options = {
        "json_schema": _either("--json-schema", schema, args.json_schema_file),
        "grammar": _either("--grammar", grammar, args.grammar_file),
        "regex": args.regex,
        "choice": args.choice or None,
    }
    return {name: value for name, value in options.items() if value is not None}


def _is_json(text: str) -> bool:
    """Whether a schema is given itself, and not a file's name."""
    return text.lstrip().startswith(("{", "[", '"')) or text.strip() in ("true", "false", "null")


def _either(flag: str, text: str | None, file: str | None) -> str | None:
    if text is not None and file is not None:
        raise OptionError(f"{flag}-file: {flag} is given too; give one of them")
    return text if file is None else _read(f"{flag}-file", file)


def _read(flag: str, file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise OptionError(f"{flag}: {file} is not valid UTF-8") from None
    except (OSError, ValueError) as error:  # a name with a null character is a ValueError
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise OptionError(f"{flag}: can't read {file[:80]!r}: {reason}") from None
