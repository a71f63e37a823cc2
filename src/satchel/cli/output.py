"""What commands print: an answer as it comes, timings, tables, JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from satchel.api import Stats, Stream


def write_stream(stream: Stream) -> Stats:
    """Prints an answer to stdout while it comes, with a line's end; returns what it took.

    Thoughts go to stderr: they are no part of the answer.
    """
    text = ""
    thinks = False
    for piece in stream:
        if piece.reasoning:
            thinks = True
            sys.stderr.write(piece.reasoning)
            sys.stderr.flush()
        if piece.text:
            if thinks:
                thinks = False
                sys.stderr.write("\n\n")
                sys.stderr.flush()
            text = piece.text
            sys.stdout.write(text)
            sys.stdout.flush()
    if not text.endswith("\n"):
        sys.stdout.write("\n")
        sys.stdout.flush()
    assert stream.stats is not None
    return stream.stats


def timings(stats: Stats) -> str:
    """One line of what an answer took."""
    dropped = f" | {stats.dropped_tokens} tokens forgotten" if stats.dropped_tokens else ""
    cached = f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""
    return (
        f"prompt {stats.prompt_tokens} tokens{cached}, {stats.prompt_tokens_per_s:.1f} tokens/s"
        f" | first token {stats.time_to_first_token_ms:.0f} ms"
        f" | answer {stats.generated_tokens} tokens, {stats.generated_tokens_per_s:.1f} tokens/s"
        f"{dropped} | {stats.finish_reason}"
    )


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows in columns; columns of numbers are aligned to the right."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    right = [all(line[i][:1].isdigit() for line in lines) for i in range(len(head))]

    def line(cells: Sequence[str]) -> str:
        padded = [
            c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True)
        ]
        return "  ".join(padded).rstrip()

    return "\n".join(map(line, [list(head), *lines]))


def as_json(value: Any) -> str:
    """JSON on one line."""
    return json.dumps(value, ensure_ascii=False)
