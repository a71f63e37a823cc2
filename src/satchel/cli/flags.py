"""The flags: spellings and sampler defaults of llama.cpp, and their SATCHEL_* variables."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from satchel.base.errors import OptionError
from satchel.base.options import PREFIX, count, n_bytes, switch, variable, variables
from satchel.cli.grammars import grammar_options
from satchel.kernels.cache_types import CACHE_TYPES, F16, cache_type


@dataclass(frozen=True)
class Flag:
    """A flag, or with `repeated` one whose values gather in a list. `parse` raises ValueError.

    Each long spelling has a variable: --ctx-size has SATCHEL_CTX_SIZE.
    """

    spellings: tuple[str, ...]
    help: str
    parse: Callable[[str], Any] = str
    default: Any = None
    metavar: str = "N"
    repeated: bool = False

    @property
    def dest(self) -> str:
        return max(self.spellings, key=len).lstrip("-").replace("-", "_")

    @property
    def variables(self) -> tuple[str, ...]:
        """Without the prefix; of two that are set, the longer one counts."""
        long = sorted((s for s in self.spellings if s.startswith("--")), key=len, reverse=True)
        return tuple(s.lstrip("-").replace("-", "_").upper() for s in long)

    @property
    def is_switch(self) -> bool:
        return self.parse is switch

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declares it. Absent flags are None, so that `complete` knows them."""
        named: dict[str, Any] = {"dest": self.dest, "default": None, "help": self._help()}
        if self.is_switch:
            parser.add_argument(*self.spellings, action="store_true", **named)
            return
        action = "append" if self.repeated else "store"
        kind = _argument(self.parse)
        parser.add_argument(
            *self.spellings, action=action, type=kind, metavar=self.metavar, **named
        )

    def complete(self, args: argparse.Namespace) -> None:
        """Where the flag was absent: its variable, else its default. Raises OptionError."""
        if getattr(args, self.dest) is not None:
            return
        found = (variable(name, self.parse) for name in self.variables)
        value = next((value for value in found if value is not None), None)
        if self.repeated:
            value = [] if value is None else [value]
        setattr(args, self.dest, self.default if value is None else value)

    def _help(self) -> str:
        shown = "" if self.default in (None, False, "") else f" (default {self.default})"
        return self.help.replace("%", "%%") + shown


def _argument(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def argument(text: str) -> Any:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{text!r} {error}") from None

    return argument


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """A parser of whole numbers from `least` to `most`."""

    def parse(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) < 30):
            raise ValueError("is not a whole number")
        if not least <= int(text) <= most:
            raise ValueError(f"is not a whole number from {least} to {most}")
        return int(text)

    return parse


def number(least: float, most: float) -> Callable[[str], float]:
    """A parser of numbers from `least` to `most`."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError("is not a number") from None
        if not least <= value <= most:  # NaN is not
            raise ValueError(f"is not a number from {least:g} to {most:g}")
        return value

    return parse


def one_of(*words: str) -> Callable[[str], str]:
    """A parser of one of some words."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"is none of {', '.join(words)}")
        return text

    return parse


def duration(text: str) -> float:
    """Parses a time as seconds: 300, 5m, 1h30m; less than 0 stands for ever."""
    from satchel.serve.durations import parse_duration

    try:
        seconds = parse_duration(text)
    except OptionError:
        raise ValueError("is no time, as 300, 5m or 1h30m are") from None
    return -1.0 if seconds is None else seconds


def bias(text: str) -> dict[int, float]:
    """Parses TOKEN_ID(+/-)BIAS, several divided by commas: "15043+1,29871-inf"."""
    biases: dict[int, float] = {}
    for one in text.split(","):
        place = max(one.find("+"), one.find("-"))
        token, value = one[:place], one[place:]
        if place < 1 or not (token.isascii() and token.isdigit()):
            raise ValueError("is not of the form TOKEN_ID+BIAS or TOKEN_ID-BIAS")
        biases[int(token)] = number(-math.inf, 1e9)(value)
    return biases


def zero_or_two(text: str) -> int:
    """Parses 0 or 2."""
    if text not in ("0", "2"):
        raise ValueError("is neither 0 nor 2")
    return int(text)


def unescaped(text: str) -> str:
    """A text in which a shell's user can write a newline as \\n, a tab as \\t, and \\\\."""
    if not text:
        raise ValueError("is empty")
    parts = (part.replace("\\n", "\n").replace("\\t", "\t") for part in text.split("\\\\"))
    return "\\".join(parts)


MODEL = Flag(("-m", "--model"), "the model: path, pypi:, hf: or name", metavar="MODEL")
CONTEXT = Flag(
    ("-c", "--ctx-size"), "tokens of prompt and answer; 0: the model's own", whole(0), None
)
THREADS = Flag(("-t", "--threads"), "worker threads (default: the machine's fast cores)", count)
_TYPES = f"in the KV cache: {', '.join(CACHE_TYPES)}"
CACHE = (
    Flag(("-ctk", "--cache-type-k"), f"type of keys {_TYPES}", cache_type, F16, metavar="TYPE"),
    Flag(("-ctv", "--cache-type-v"), f"type of values {_TYPES}", cache_type, F16, metavar="TYPE"),
)
MEMORY = Flag(("--memory",), "the most memory that may be taken, as 1.5G", n_bytes, metavar="BYTES")
FORCE = Flag(
    ("--force-cache-type",), "take cache types that are known to lose much, too", switch, False
)
NO_PREFIX = Flag(("--no-prefix-cache",), "keep nothing for prompts that begin alike", switch, False)
FORGET = (
    Flag(("--window",), "go on for ever, and forget all but the last N tokens", whole(1)),
    Flag(("--sinks",), "and the first N (with --window; 4 are enough)", whole(0)),
    Flag(("--evict",), "go on for ever with the tokens that most is attended to: h2o:BUDGET",
         metavar="HOW"),
)  # fmt: skip
JSON = Flag(("--json",), "print JSON", switch, False)
PROMPT = Flag(("-p", "--prompt"), "the prompt", metavar="TEXT")
FILE = Flag(("-f", "--file"), "read the prompt from this file", metavar="PATH")
SYSTEM = Flag(("-sys", "--system-prompt"), "how the model should behave", metavar="TEXT")
RAW = Flag(("--raw",), "complete the prompt as it stands, without the chat template", switch, False)
QUIET = Flag(("-q", "--quiet"), "no timings after an answer", switch, False)

ANSWER = (
    Flag(("-n", "--predict", "--n-predict"), "most tokens of the answer; -1: any", whole(-1), -1),
    Flag(("--temp", "--temperature"), "temperature; 0: the likeliest token", number(0, 1e6), 0.8),
    Flag(("--top-k",), "only the k likeliest tokens; 0: off", whole(0), 40),
    Flag(("--top-p",), "only the likeliest, up to this probability; 1: off", number(0, 1), 0.95),
    Flag(("--min-p",), "only at least this likely, by the likeliest; 0: off", number(0, 1), 0.05),
    Flag(("--repeat-penalty",), "penalty of repeated tokens; 1: off", number(1e-6, 1e6), 1.0),
    Flag(("--repeat-last-n",), "tokens the penalties look back on; -1: all", whole(-1), 64),
    Flag(
        ("--presence-penalty",), "penalty of tokens that occurred; 0: off", number(-1e6, 1e6), 0.0
    ),
    Flag(("--frequency-penalty",), "penalty by number of times; 0: off", number(-1e6, 1e6), 0.0),
    Flag(("--typical", "--typical-p"), "only the most typical, up to this probability; 1: off",
         number(0, 1), 1.0),
    Flag(("--top-nsigma", "--top-n-sigma"), "only logits within n deviations of the highest; "
         "-1: off", number(-1, 1e6), -1.0),
    Flag(("--xtc-probability",), "how often the likeliest tokens are left out; 0: never",
         number(0, 1), 0.0),
    Flag(("--xtc-threshold",), "how likely these are at least; above 0.5: off", number(0, 1), 0.1),
    Flag(("--dynatemp-range",), "temperature varies so much, by how sure the model is; 0: not",
         number(0, 1e6), 0.0),
    Flag(("--dynatemp-exp",), "how it follows the entropy", number(0, 1e6), 1.0),
    Flag(("--mirostat",), "2: Mirostat 2.0 in the place of all filters; 0: off", zero_or_two, 0),
    Flag(("--mirostat-ent",), "the surprise that it aims at, in bits", number(0, 1e6), 5.0),
    Flag(("--mirostat-lr",), "how fast it learns", number(0, 1e6), 0.1),
    Flag(("--dry-multiplier",), "penalty of going on with a repetition; 0: off", number(0, 1e6),
         0.0),
    Flag(("--dry-base",), "times this for each token that it is longer", number(1, 1e6), 1.75),
    Flag(("--dry-allowed-length",), "than this", whole(0), 2),
    Flag(("--dry-penalty-last-n",), "tokens searched for repetitions; 0: none; -1: all",
         whole(-1), 64),
    Flag(("--dry-sequence-breaker",), "no repetition reaches across this text; none: no such text; "
         "may be repeated (default \\n : \" *)", unescaped, metavar="TEXT", repeated=True),
    Flag(("-s", "--seed"), "seed of the draws; -1: another each time", whole(-1, 2**64 - 1), -1),
    Flag(
        ("--logit-bias",),
        "make a token likelier or less so, as 15043+1; may be repeated",
        bias,
        metavar="ID+BIAS",
        repeated=True,
    ),
    Flag(
        ("-r", "--stop", "--reverse-prompt"),
        "end the answer before this text; may be repeated",
        metavar="TEXT",
        repeated=True,
    ),
    Flag(("--ignore-eos",), "go on where the model would end", switch, False),
)  # fmt: skip
GRAMMARS = (  # what the answer must be: one of them
    Flag(("-j", "--json-schema"), "the answer is JSON that fits this schema, or the one in this "
         "file; true: any JSON", metavar="JSON"),
    Flag(("-jf", "--json-schema-file"), "the schema is in this file", metavar="PATH"),
    Flag(("--regex",), "the answer matches this regex as a whole", metavar="REGEX"),
    Flag(("--grammar",), "the answer fits this grammar: GBNF, or Lark", metavar="TEXT"),
    Flag(("--grammar-file",), "the grammar is in this file", metavar="PATH"),
    Flag(("--choice",), "the answer is this text, or another one given so", metavar="TEXT",
         repeated=True),
)  # fmt: skip


# the options that are a flag's value as it is: most have its name
SAMPLING = {
    **{
        name: name
        for name in (
            "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma",
            "xtc_probability", "xtc_threshold", "dynatemp_range", "mirostat",
            "repeat_penalty", "repeat_last_n", "presence_penalty", "frequency_penalty",
            "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n",
        )
    },
    "dynatemp_exponent": "dynatemp_exp",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
}  # fmt: skip


@dataclass(frozen=True)
class Command:
    """A subcommand: what it takes, and the function ("module:name" of this room) that runs it."""

    help: str
    flags: tuple[Flag, ...]
    words: str  # its positional arguments, as shown
    function: str
    notes: str = ""
    kinds: tuple[str, ...] = ()  # its first positional argument is one of these, if there are any


COMMANDS = {
    "run": Command(
        "answer one prompt",
        (
            MODEL, PROMPT, FILE, SYSTEM, RAW, QUIET, CONTEXT, THREADS, MEMORY, *CACHE, FORCE,
            NO_PREFIX,
            *FORGET,
            *ANSWER, *GRAMMARS,
        ),
        "MODEL [PROMPT]",
        "run:run",
        "The prompt may also come from stdin.",
    ),
    "chat": Command(
        "talk to a model",
        (
            MODEL,
            SYSTEM,
            Flag(("--session",), "go on with the conversation of this name, kept between calls",
                 metavar="NAME"),
            QUIET, CONTEXT, THREADS, MEMORY, *CACHE, FORCE, NO_PREFIX, *FORGET, *ANSWER, *GRAMMARS,
        ),
        "MODEL",
        "chat:chat",
        "/help lists what can be said beside messages. Ctrl-C stops an answer.",
    ),
    "serve": Command(
        "serve models over HTTP, to clients of OpenAI's and Ollama's protocols",
        (
            MODEL, CONTEXT, THREADS, MEMORY, *CACHE, FORCE, NO_PREFIX, *FORGET,
            Flag(("--host",), "address to listen on", default="127.0.0.1", metavar="HOST"),
            Flag(("--port",), "port to listen on; 0: any free one", whole(0, 65535), 8080),
            Flag(("--api-key",), "let in only who knows this key; better in its variable",
                 metavar="KEY"),
            Flag(("--insecure",), "let other machines in without a key", switch, False),
            Flag(("--cors-origin",), "let web pages of this origin in; may be repeated",
                 metavar="URL", repeated=True),
            Flag(("-np", "--parallel"), "full contexts that fit into the KV cache",
                 whole(1, 64), 4),
            Flag(("--max-requests",), "answers in the making or waiting; more get 503",
                 whole(1, 4096), 64),
            Flag(("--max-loaded",), "models in memory at a time", whole(1, 64), 2),
            Flag(("--keep-alive",), "how long an idle model stays loaded, as 5m; -1: for ever",
                 duration, 300, metavar="TIME"),
            Flag(("--pooling",), "how embeddings are made of a text: mean or last",
                 one_of("mean", "last"), "mean", metavar="HOW"),
            Flag(("--disk-cache",), "disk space for what was computed of conversations; 0: none "
                 "(default 1G, or a tenth of what is free)", n_bytes, metavar="SIZE"),
            Flag(("--grace",), "seconds that answers get to finish at shutdown", whole(1), 10),
            Flag(("--log-json",), "log JSON lines", switch, False),
        ),
        "[MODEL...]",
        "serve:serve",
        "Models are loaded when asked for; the first named is the default.",
    ),
    "show": Command(
        "what a model is, and the memory it needs",
        (
            MODEL, CONTEXT, MEMORY, *CACHE,
            Flag(("-np", "--parallel"), "full contexts that fit into the KV cache", whole(1, 64),
                 1),
            JSON,
        ),
        "MODEL",
        "show:show",
    ),
    "pull": Command("fetch a model", (MODEL,), "MODEL", "models:pull"),
    "list": Command("the models that are here", (JSON,), "", "models:list_models"),
    "rm": Command("delete a fetched model", (MODEL,), "MODEL", "models:remove"),
    "bench": Command(
        "measure speed, beside this machine's limits",
        (
            MODEL,
            Flag(("-p", "--n-prompt"), "tokens of the prompt test; 0: none", whole(0), 512),
            Flag(("-n", "--n-gen"), "tokens of the generation test; 0: none", whole(0), 128),
            Flag(("-d", "--n-depth"), "tokens that are there before each test", whole(0), 0),
            Flag(("-r", "--repetitions"), "how often each test is run", whole(1), 5),
            Flag(("--profile",), "where a step's time goes, by kernel", switch, False),
            Flag(("--shape",), "random weights of this shape for a model", metavar="NAME"),
            Flag(("--format",), "their format (default q4_0)", metavar="NAME"),
            Flag(("--keep",), "write the shape's file here, and keep it", metavar="FILE"),
            Flag(("--save",), "keep the results under this name", metavar="NAME"),
            Flag(("--compare",), "exit code 1 if slower than these", metavar="NAME"),
            THREADS,
            MEMORY,
            *CACHE,
            JSON,
        ),
        "[MODEL]",
        "bench:bench",
        "Shapes: smollm2-135m, llama-3.2-1b, qwen2.5-7b and others; formats: q4_0, q4_1, q4_k_m, "
        "q5_k_m, q6_k, q8_0, f16. Slower means: by more than 3 standard deviations and 2 %.",
    ),
    "tune": Command(
        "measure which number of threads and which tiles are best here, and keep them",
        (MODEL, Flag(("--clear",), "forget what was measured", switch, False), JSON),
        "[MODEL]",
        "tune:tune",
        "Takes some 10 seconds, most of it with random weights, which are deleted again; threads "
        "are tried with the model, if one is named. The number is used wherever -t is not. Tiles "
        "are how kernels cut their work, and change no bit of an answer.",
    ),
    "measure": Command(
        "what types for the KV cache cost a model's answers",
        (
            MODEL,
            Flag(("-f", "--file"), "text to measure on (default: some of Python's documentation)",
                 metavar="PATH"),
            Flag(("-n", "--tokens"), "tokens of it to take", whole(2), 2048),
            *(replace(flag, default=None, help=f"{flag.help}; default: many pairs")
              for flag in CACHE),
            CONTEXT, THREADS, JSON,
        ),
        "kv MODEL",
        "measure:measure",
        "The figures are kept, and say which types are refused for this file.",
        kinds=("kv",),
    ),
    "explain": Command(
        "a layer on its way from graph to machine code",
        (MODEL, Flag(("--layer",), "which layer", whole(0), 0),
         Flag(("--target",), "the target to compile for", metavar="NAME"), JSON),
        "MODEL",
        "explain:explain",
    ),
    "doctor": Command(
        "what this machine is and can do, and where the caches lie",
        (Flag(("--clear-cache",), "delete compiled kernels, packed weights and saved pages",
              switch, False),
         THREADS, JSON),
        "",
        "doctor:doctor",
    ),
}  # fmt: skip


def unknown_variables() -> list[str]:
    """SATCHEL_* variables that are set and that nothing here reads: most likely mistyped."""
    flags = [flag for command in COMMANDS.values() for flag in command.flags]
    known = {name for flag in flags for name in flag.variables}
    known |= {"CACHE", "DATA", "TARGET", "OFFLINE", "LOG", "PACKED_LIMIT"}
    return [PREFIX + name for name in variables() if name not in known]


def cache_options(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of MEMORY, CACHE, FORCE, NO_PREFIX and FORGET as options of satchel.load."""
    return {
        "cache_type_k": args.cache_type_k,
        "cache_type_v": args.cache_type_v,
        "force_cache_type": args.force_cache_type,
        "prefix_cache": not args.no_prefix_cache,
        "sinks": args.sinks,
        "window": args.window,
        "evict": args.evict,
        "memory": args.memory,
    }


def answer_options(args: argparse.Namespace) -> dict[str, Any]:
    """The flags of ANSWER and GRAMMARS as options of satchel.LLM.generate."""
    biases: dict[int, float] = {}
    for one in args.logit_bias:
        biases |= one
    options: dict[str, Any] = {option: getattr(args, flag) for option, flag in SAMPLING.items()}
    if breakers := list(args.dry_sequence_breaker):
        options["dry_sequence_breakers"] = [text for text in breakers if text != "none"]
    return options | {
        "max_tokens": None if args.n_predict < 0 else args.n_predict,
        "logit_bias": biases,
        "seed": None if args.seed < 0 else args.seed,
        "stop": list(args.reverse_prompt),
        "ignore_eos": args.ignore_eos,
        **grammar_options(args),
    }
