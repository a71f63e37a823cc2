"""`satchel bench`: shapes, baselines, profiles."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from satchel.measure import shapes
from satchel.measure.bench import Result
from satchel.measure.shapes import SHAPES, Shape

TOY = ["bench", "--shape", "toy", "-p", "16", "-n", "2", "-r", "2", "-t", "1"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Caches in an empty folder, and a toy among the shapes."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    toy = Shape("llama", 2, 128, 256, 2, 1, 64, 300, "llama-bpe", 512, 1e4)
    monkeypatch.setitem(shapes.SHAPES, "toy", toy)
    return tmp_path / "cache"


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
def test_a_shape_leaves_nothing_behind(call: Call, cache: Path) -> None:
    pp, tg = lines(call(*TOY, "--json").out)
    assert (pp["model"], pp["test"], tg["test"]) == ("toy q4_0", "pp16", "tg2")
    assert not list((cache / "packed").glob("*.weights"))


@pytest.mark.slow
def test_a_shape_that_is_kept(call: Call, tmp_path: Path) -> None:
    kept = tmp_path / "toy.gguf"
    words = [*TOY, "--format", "Q8_0", "--keep", str(kept), "--json"]
    assert lines(call(*words).out)[0]["model"] == "toy q8_0"
    assert kept.is_file()
    assert call("bench", str(kept), "-p", "4", "-n", "0", "-r", "1", "-t", "1").code == 0


@pytest.mark.slow
def test_a_depth(call: Call) -> None:
    pp, _ = lines(call(*TOY, "-d", "100", "--json").out)
    assert (pp["test"], pp["depth"]) == ("pp16 @ d100", 100)


@pytest.mark.slow
def test_slower_than_a_baseline(call: Call, cache: Path) -> None:
    saved = call(*TOY, "--save", "now")
    assert saved.code == 0
    assert "kept as" in saved.err
    path = cache / "baselines" / "now.json"
    content = json.loads(path.read_text())
    for result in content["results"]:  # as if it had been far faster once, and without noise
        result |= {"tokens_per_s": 1e9, "tokens_per_s_sd": 0.0}
    path.write_text(json.dumps(content))
    words = [*TOY, "-r", "1", "--compare", "now"]  # a single run has no deviation
    found = call(*words, "--json")
    assert found.code == 1
    assert [line["verdict"] for line in lines(found.out)] == ["slower", "slower"]
    for result in content["results"]:
        result |= {"tokens_per_s": 1e-3}
    path.write_text(json.dumps(content))
    found = call(*words)
    assert found.code == 0
    assert found.out.count("faster") == 2


@pytest.mark.slow
def test_a_profile(call: Call) -> None:
    found = lines(call(*TOY, "--profile", "--json").out)
    assert {line["kind"] for line in found} == {"limits", "step", "kernel", "engine"}
    shown = call(*TOY, "--profile").out
    for said in ("GB/s from memory", "pp16:", "tg:", "waiting", "matmul", "of the engine, greedy"):
        assert said in shown


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench"], "give either a MODEL or a --shape"),
        ([*TOY, "-m", "x"], "give either a MODEL or a --shape"),
        (["bench", "x", "--format", "q4_0"], "--format goes with --shape"),
        (["bench", "x", "--keep", "y"], "--keep goes with --shape"),
        ([*TOY, "--profile", "--save", "x"], "--profile is not kept"),
        ([*TOY, "--compare", "x"], "no baseline 'x': none was saved yet"),
        ([*TOY, "--save", "../x"], "can't name a baseline"),
        (["bench", "--shape", "huge"], f"no shape 'huge'; there are {', '.join(SHAPES)}"),
        ([*TOY, "--format", "q1"], "no format 'q1'"),
    ],
)
def test_one_line_says_what_is_wrong(words: list[str], said: str, call: Call) -> None:
    done = call(*words)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err


@pytest.mark.slow
def test_json_has_what_readers_count_on(call: Call) -> None:
    for line in lines(call(*TOY, "--json").out):
        assert set(Result.__annotations__) | {"fraction_of_limit"} == set(line)
