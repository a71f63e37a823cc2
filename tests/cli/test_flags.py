"""Flags, their variables, and what becomes of a value that makes no sense."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from satchel.base.errors import OptionError
from satchel.cli.flags import ANSWER, COMMANDS, answer_options, bias, unknown_variables
from satchel.cli.main import parse

LLAMA_DEFAULTS = {
    "max_tokens": None,
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "repeat_penalty": 1.0,
    "repeat_last_n": 64,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "typical_p": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "mirostat": 0,
    "mirostat_tau": 5.0,
    "mirostat_eta": 0.1,
    "dry_multiplier": 0.0,
    "dry_base": 1.75,
    "dry_allowed_length": 2,
    "dry_penalty_last_n": 64,
    "logit_bias": {},
    "seed": None,
    "stop": [],
    "ignore_eos": False,
}


def test_defaults_are_those_of_llama_cpp() -> None:
    assert answer_options(parse(["run", "m"])) == LLAMA_DEFAULTS


def test_every_flag_reaches_its_option() -> None:
    words = (
        "run m -n 5 --temp 0 --top-k 1 --top-p 0.5 --min-p 0.1 --repeat-penalty 1.1 "
        "--repeat-last-n -1 --presence-penalty 0.2 --frequency-penalty -0.3 -s 7 "
        "--logit-bias 15043+1 --logit-bias 3-inf,4-2.5 --stop a -r b --ignore-eos "
        "--typical 0.9 --top-nsigma 1 --xtc-probability 0.2 --xtc-threshold 0.3 "
        "--dynatemp-range 0.4 --dynatemp-exp 2 --mirostat 2 --mirostat-ent 4 --mirostat-lr 0.2 "
        "--dry-multiplier 0.8 --dry-base 2 --dry-allowed-length 3 --dry-penalty-last-n -1 "
        "--dry-sequence-breaker \\n --dry-sequence-breaker ;"
    )
    assert answer_options(parse(words.split())) == {
        "max_tokens": 5,
        "temperature": 0.0,
        "top_k": 1,
        "top_p": 0.5,
        "min_p": 0.1,
        "repeat_penalty": 1.1,
        "repeat_last_n": -1,
        "presence_penalty": 0.2,
        "frequency_penalty": -0.3,
        "typical_p": 0.9,
        "top_n_sigma": 1.0,
        "xtc_probability": 0.2,
        "xtc_threshold": 0.3,
        "dynatemp_range": 0.4,
        "dynatemp_exponent": 2.0,
        "mirostat": 2,
        "mirostat_tau": 4.0,
        "mirostat_eta": 0.2,
        "dry_multiplier": 0.8,
        "dry_base": 2.0,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": -1,
        "dry_sequence_breakers": ["\n", ";"],
        "seed": 7,
        "logit_bias": {15043: 1.0, 3: float("-inf"), 4: -2.5},
        "stop": ["a", "b"],
        "ignore_eos": True,
    }


@pytest.mark.parametrize(
    "words",
    ["-n 1.5", "-n -2", "--temp x", "--temp nan", "--temp -1", "--top-p 1.1", "--top-k -1",
     "--min-p -0.1", "-s -2", "-c -1", "-t 0", "--logit-bias 5", "--logit-bias +1",
     "--logit-bias 1+x", "--mirostat 1", "--dry-base 0.9", "--typical 2", "--no-such",
     "-n", "--repeat-penalty 0", f"-n {2**31}", "-n 9" + 40 * "9"],
)  # fmt: skip
def test_absurd_flags_are_one_line_that_names_them(words: str) -> None:
    with pytest.raises(OptionError) as failed:
        parse(["run", "m", *words.split(" ", 1)])
    assert words.split()[0] in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_variable_for_every_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in ANSWER:
        others = {"logit_bias": "1+2", "reverse_prompt": "x", "ignore_eos": "yes", "mirostat": "2"}
        value = others.get(flag.dest, "1")
        monkeypatch.setenv(f"SATCHEL_{flag.variables[0]}", value)
    found = answer_options(parse(["run", "m"]))
    assert found["top_k"] == found["temperature"] == found["seed"] == 1
    assert (found["stop"], found["logit_bias"], found["ignore_eos"]) == (["x"], {1: 2.0}, True)
    assert answer_options(parse(["run", "m", "--top-k", "2"]))["top_k"] == 2  # the flag wins
    monkeypatch.setenv("SATCHEL_TOP_K", "many")
    with pytest.raises(OptionError, match="SATCHEL_TOP_K='many' is not a whole number"):
        parse(["run", "m"])


@pytest.mark.parametrize(
    ("name", "value", "option", "found"),
    [
        ("PREDICT", "3", "max_tokens", 3),
        ("N_PREDICT", "3", "max_tokens", 3),
        ("TEMP", "0.5", "temperature", 0.5),
        ("TEMPERATURE", "0.5", "temperature", 0.5),
        ("STOP", "x", "stop", ["x"]),
        ("REVERSE_PROMPT", "x", "stop", ["x"]),
    ],
)
def test_every_spelling_has_a_variable(
    name: str, value: str, option: str, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SATCHEL_{name}", value)
    assert answer_options(parse(["run", "m"]))[option] == found
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("given", "breakers"),
    [
        (["none"], []),
        ([r"\n\t"], ["\n\t"]),
        ([r"a\\n", "*"], [r"a\n", "*"]),
    ],
)
def test_texts_that_break_repetitions(given: list[str], breakers: list[str]) -> None:
    words = [word for text in given for word in ("--dry-sequence-breaker", text)]
    assert answer_options(parse(["run", "m", *words]))["dry_sequence_breakers"] == breakers


def test_no_two_flags_of_a_command_share_a_spelling() -> None:
    for command in COMMANDS.values():
        spellings = [s for flag in command.flags for s in flag.spellings]
        assert len(spellings) == len(set(spellings))


@pytest.mark.parametrize(
    ("argv", "model", "prompt"),
    [
        (["run", "m"], "m", None),
        (["run", "m", "hi"], "m", "hi"),
        (["run", "-m", "m", "hi"], "m", "hi"),
        (["run", "hi", "-m", "m"], "m", "hi"),
        (["run", "m", "-p", "hi"], "m", "hi"),
        (["run", "m", "--raw", "hi"], "m", "hi"),
        (["run", "--top-k", "3", "m", "--raw", "hi", "-n", "3"], "m", "hi"),
        (["run", "m", "--", "-hi"], "m", "-hi"),
        (["run", "--model=m", "--prompt=hi"], "m", "hi"),
    ],
)
def test_model_and_prompt(argv: list[str], model: str, prompt: str | None) -> None:
    args = parse(argv)
    assert (args.model, args.prompt) == (model, prompt)


def test_the_model_may_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_MODEL", "v")
    assert parse(["run", "hi"]).prompt == "hi"
    assert parse(["run", "m", "hi"]).model == "m"
    assert parse(["show"]).model == "v"
    assert parse(["show", "m"]).model == "m"


@pytest.mark.parametrize(
    "argv", [["run"], ["show"], ["run", "m", "a", "b"], ["run", "m", "hi", "-p", "hi"], ["fly"]]
)
def test_words_too_few_or_too_many(argv: list[str]) -> None:
    with pytest.raises(OptionError):
        parse(argv)


def test_bias() -> None:
    assert bias("1+2,30-0.5") == {1: 2.0, 30: -0.5}


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from satchel.cli.main import make_parser; make_parser().format_help();"
        "print({'numpy', 'llvmlite', 'tokenizers', 'jinja2'} & set(sys.modules))"
    )
    heavy = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert heavy.stdout == "set()\n"
