"""Where `satchel` begins: parse, run one command, turn what goes wrong into one line and a code.

Exit codes: 0, 1 for an error, 2 for a wrong argument, 130 after Ctrl-C, 141 when the reader of our
output has gone. Only what the command at hand needs is imported.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from satchel.base import log
from satchel.base.errors import OptionError, SatchelError
from satchel.cli.flags import COMMANDS, Command, unknown_variables


class Parser(argparse.ArgumentParser):
    """argparse's, but that its errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise OptionError(f"{message} (see {self.prog} --help)")


def make_parser() -> argparse.ArgumentParser:
    """The command line up to the command's name."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name.ljust(width)}  {c.help}" for name, c in COMMANDS.items())
    parser = Parser(
        prog="satchel",
        usage="satchel COMMAND ... (satchel COMMAND --help tells more)",
        description="Language models on this device, on kernels written for its very CPU.\n\n"
        f"commands:\n{commands}",
        epilog="MODEL is a path, smollm2, gemma3-270m, pypi:PACKAGE or hf:OWNER/REPO[:QUANT].",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    parser.add_argument("command", nargs="?", choices=COMMANDS, help=argparse.SUPPRESS)
    return parser


def command_parser(name: str) -> argparse.ArgumentParser:
    """What follows a command's name."""
    command = COMMANDS[name]
    parser = Parser(
        prog=f"satchel {name}",
        usage=f"satchel {name} {command.words}{' ' if command.words else ''}[flags]",
        description=f"{command.help[0].upper()}{command.help[1:]}. {command.notes}",
        epilog="Each flag has a variable: --top-k is SATCHEL_TOP_K.",
        allow_abbrev=False,
    )
    parser.set_defaults(command=name, version=False)
    if command.words:
        parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    for flag in command.flags:
        flag.add_to(parser)
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments, completed by variables and defaults. Raises OptionError."""
    if not argv or argv[0] not in COMMANDS:
        return make_parser().parse_args(argv)
    # intermixed: words may stand before, between and behind the flags
    args = command_parser(argv[0]).parse_intermixed_args(argv[1:])
    command = COMMANDS[args.command]
    flag_model = getattr(args, "model", None)
    for flag in command.flags:
        flag.complete(args)
    if command.words:
        _place_words(args, command, flag_model)
    return args


def _place_words(args: argparse.Namespace, command: Command, flag_model: str | None) -> None:
    """Positional words: the model, unless -m or its variable named it, then the prompt."""
    words: list[str] = list(args.words)
    if "..." in command.words:  # any number of models, none too
        args.models = ([args.model] if args.model else []) + words
        return
    if command.kinds:
        args.kind = words.pop(0) if words else ""
        if args.kind not in command.kinds:
            known = ", ".join(command.kinds)
            raise OptionError(f"satchel {args.command} what? {args.kind!r} is none of: {known}")
    takes_prompt = "PROMPT" in command.words
    if words and flag_model is None and (args.model is None or len(words) > takes_prompt):
        args.model = words.pop(0)
    if words and takes_prompt and args.prompt is None:
        args.prompt = words.pop(0)
    if words:
        raise OptionError(f"{words[0]!r} is one argument too many; put a text in quotes")
    if args.model is None and not command.words.startswith("["):
        raise OptionError(f"which model? usage: satchel {args.command} {command.words}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except SatchelError as error:
        log.note(f"satchel: error: {error}")
        return 2 if isinstance(error, OptionError) else 1
    except KeyboardInterrupt:
        log.note("")
        return 130
    except BrokenPipeError:  # nobody reads on
        _drop_output()
        return 141
    except OSError as error:
        _drop_output()
        log.note(f"satchel: error: {error.filename or 'the output'}: {error.strerror or error}")
        return 1
    except ImportError as error:
        log.note(f"satchel: error: can't load what satchel needs: {error}")
        return 1
    except MemoryError:
        log.note("satchel: error: out of memory; try a smaller context (-c) or model")
        return 1


def _drop_output() -> None:
    """Lets go of what is still buffered for stdout, which would raise again at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _main(argv: Sequence[str]) -> int:
    if sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise OptionError("stdout is closed; let it go to a file, or to /dev/null")
    args = parse(argv)
    if args.version:
        version = importlib.import_module("importlib.metadata").version("satchel")
        print(f"satchel {version}")
        return 0
    if not args.command:
        make_parser().print_help(sys.stderr)
        return 2
    for name in unknown_variables():
        log.warning(f"{name} is set, and nothing reads it")
    module, _, function = COMMANDS[args.command].function.partition(":")
    code = int(getattr(importlib.import_module(f"satchel.cli.{module}"), function)(args))
    sys.stdout.flush()  # here, where a broken pipe is still caught
    return code
