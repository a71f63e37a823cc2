"""`satchel run`: one prompt, one answer."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import satchel
from satchel.base import log
from satchel.base.errors import OptionError, TemplateError
from satchel.cli.flags import answer_options, cache_options
from satchel.cli.output import timings, write_stream

if TYPE_CHECKING:
    from satchel.api import LLM, Stream


def run(args: argparse.Namespace) -> int:
    """Prints the model's answer to stdout, its timings to stderr."""
    prompt = read_prompt(args)
    if args.raw and args.system_prompt:
        raise OptionError("--system-prompt needs the chat template that --raw leaves out")
    with (
        open_model(args) as llm,
        start(llm, args, prompt) as stream,
    ):
        stats = write_stream(stream)
    if not args.quiet:
        log.note(timings(stats))
    return 0


def open_model(args: argparse.Namespace) -> LLM:
    """The model of a command that has one answer made at a time."""
    return satchel.load(
        args.model,
        context=args.ctx_size,
        threads=args.threads,
        parallel=1,
        **cache_options(args),
    )


def start(llm: LLM, args: argparse.Namespace, prompt: str) -> Stream:
    """The answer in the making. Raises as `LLM.chat` does, and says what flag may help."""
    options = answer_options(args)
    if args.raw:
        return llm.stream(prompt, **options)
    said = [{"role": "user", "content": prompt}]
    if args.system_prompt:
        said.insert(0, {"role": "system", "content": args.system_prompt})
    try:
        return llm.chat_stream(said, **options)
    except TemplateError as error:
        raise TemplateError(f"{error}; --raw does without the template") from None


def read_prompt(args: argparse.Namespace) -> str:
    """The prompt: an argument, a file, or stdin. Raises OptionError when there is none."""
    if args.prompt is not None and args.file:
        raise OptionError("two prompts: give a text or --file, not both")
    if args.prompt is not None:
        return str(args.prompt)
    try:
        if args.file:
            return Path(args.file).read_text(encoding="utf-8")
        if sys.stdin is None or sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
            raise OptionError("there is no prompt; give one as the last argument, or on stdin")
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise OptionError("the prompt is not valid UTF-8") from None
    except OSError as error:
        raise OptionError(f"can't read the prompt from {args.file}: {error.strerror}") from None
