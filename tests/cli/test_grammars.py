"""What the flags say that an answer must be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from tests.cli.conftest import Call
from tests.cli.fakes import FakeLLM

from satchel.base.errors import OptionError
from satchel.cli.flags import answer_options
from satchel.cli.main import parse

FIELDS = ("json_schema", "regex", "grammar", "choice")
GRAMMAR = 'root ::= "yes" | "no"'
SCHEMA = '{"type": "object"}'


def asked(*flags: str) -> dict[str, Any]:
    options = answer_options(parse(["run", "m", *flags]))
    return {name: value for name, value in options.items() if name in FIELDS}


def test_flags_reach_their_options(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "s.json", tmp_path / "g.gbnf"
    schema.write_text(SCHEMA, encoding="utf-8")
    grammar.write_text(GRAMMAR, encoding="utf-8")
    assert asked() == {}
    assert asked("-j", SCHEMA) == {"json_schema": SCHEMA}
    assert asked("--json-schema", "true") == {"json_schema": "true"}
    assert asked("-j", str(schema)) == {"json_schema": SCHEMA}
    assert asked("-jf", str(schema)) == {"json_schema": SCHEMA}
    assert asked("--grammar", GRAMMAR) == {"grammar": GRAMMAR}
    assert asked("--grammar-file", str(grammar)) == {"grammar": GRAMMAR}
    assert asked("--regex", "[a-z]+") == {"regex": "[a-z]+"}
    assert asked("--choice", "a", "--choice", "b c") == {"choice": ["a", "b c"]}


def test_each_has_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_JSON_SCHEMA", SCHEMA)
    assert asked() == {"json_schema": SCHEMA}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-j", "none.json"], "--json-schema: can't read 'none.json'"),
        (["-jf", "none.json"], "--json-schema-file: can't read"),
        (["--grammar-file", "."], "--grammar-file: can't read"),
        (["-j", "{}", "-jf", "x"], "--json-schema-file: --json-schema is given too"),
        (["--grammar", "x", "--grammar-file", "x"], "--grammar-file: --grammar is given too"),
    ],
)
def test_files_that_can_not_be_read_are_named(flags: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        asked(*flags)


def test_what_is_refused_ends_in_one_line(llm: FakeLLM, call: Call) -> None:
    failed = call("run", "m", "Hi", "-jf", "none.json")
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.count("\n") == 1


def test_a_real_model_prints_what_was_asked_for(smollm2: Path, call: Call) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
        "required": ["city", "large"],
        "additionalProperties": False,
    }
    argv = ("run", str(smollm2), "Name a city.", "-c", "256", "--temp", "0")
    done = call(*argv, "--json-schema", json.dumps(schema))
    assert done.code == 0, done.err
    jsonschema.validate(json.loads(done.out), schema)
    assert call(*argv, "--choice", "Rome", "--choice", "Oslo").out in ("Rome\n", "Oslo\n")
    failed = call(*argv, "--json-schema", '{"not": {}}')
    assert (failed.code, failed.out) == (2, "")
    assert failed.err.startswith("satchel: error: json_schema: 'not' at #")
