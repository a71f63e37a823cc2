"""`satchel measure kv`: what types for the KV cache cost a model, and whether they are refused."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from satchel.base import log
from satchel.base.errors import CacheError, OptionError
from satchel.cli.output import as_json, table
from satchel.files.store import resolve

if TYPE_CHECKING:
    from satchel.measure.kv import CacheLoss

KEPT_FROM = 1024
"""Tokens; figures of fewer decide nothing."""


def measure(args: argparse.Namespace) -> int:
    """Measures, keeps the figures for the model's file, and prints a row for each pair of types."""
    from satchel.api import choose_context, trained_context
    from satchel.engine.cache_loss import keep_losses, read_types
    from satchel.files.checkpoint import open_checkpoint
    from satchel.measure.accuracy import sample_text
    from satchel.measure.kv import PAIRS, measure_cache
    from satchel.text import load_tokenizer

    checkpoint = open_checkpoint(resolve(args.model))
    tokenizer = load_tokenizer(checkpoint.metadata)
    text = sample_text() if args.file is None else read_text(args.file)
    tokens = tokenizer.encode(text, add_bos=tokenizer.add_bos)[: args.tokens]
    if len(tokens) < 2:
        raise OptionError(f"--file {args.file}: there is no text in it to measure on")
    named = args.cache_type_k is not None or args.cache_type_v is not None
    pairs = [read_types(args.cache_type_k or "f16", args.cache_type_v or "f16")]
    pairs = pairs if named else list(PAIRS)
    context = choose_context(args.ctx_size, trained_context(checkpoint))
    found: list[CacheLoss] = []
    with Counter(len(tokens) * len(pairs)) as counter:
        for loss in measure_cache(
            checkpoint, tokens, pairs, context=context, threads=args.threads,
            progress=counter.update,
        ):  # fmt: skip
            found.append(loss)
    if len(tokens) < KEPT_FROM:
        log.note(f"not kept: {len(tokens)} tokens say little, {KEPT_FROM} are the least")
    else:
        try:
            keep_losses(checkpoint, {loss.types: loss.found.mean_kl for loss in found})
        except CacheError as error:
            log.warning(f"what was measured can't be kept: {error}")
    print_losses(found, str(args.model), json=args.json)
    return 0


def read_text(name: str) -> str:
    """A file's text. Raises OptionError."""
    try:
        return Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise OptionError(f"--file {name} is not valid UTF-8") from None
    except OSError as error:
        raise OptionError(f"can't read --file {name}: {error.strerror}") from None


def print_losses(found: list[CacheLoss], model: str, *, json: bool) -> None:
    """JSON lines, or a table."""
    if json:
        for loss in found:
            print(as_json({"model": model, **loss.as_dict()}))
        return
    rows = [
        (
            *loss.types,
            loss.kv_bytes,
            f"{loss.found.mean_kl:.4f} ± {loss.found.kl_error:.4f}",
            f"{loss.found.top1:.2%}",
            "yes" if loss.refused else "",
        )
        for loss in found
    ]
    print(table(("K", "V", "bytes a token", "mean KL", "same best token", "refused"), rows))


class Counter:
    """How far it is, on a terminal's stderr only."""

    def __init__(self, total: int) -> None:
        self.total, self.said = total, ""
        self.on_terminal = sys.stderr is not None and sys.stderr.isatty()  # pyright: ignore[reportUnnecessaryComparison]

    def update(self, done: int) -> None:
        """Shows that `done` of the total are done."""
        text = f"{done / self.total:4.0%} of {self.total} tokens"
        if self.on_terminal and text != self.said:
            self.said = text
            sys.stderr.write("\r\x1b[K" + text)
            sys.stderr.flush()

    def __enter__(self) -> Counter:
        return self

    def __exit__(self, *_: object) -> None:
        if self.said:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
