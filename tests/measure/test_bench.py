"""Work, memory and speed of a tiny model."""

from __future__ import annotations

import json

import pytest
from tests.measure import tiny

from satchel.base.errors import OptionError
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.measure.bench import cases_of, load_for, measure
from satchel.measure.work import work_of


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(tiny.write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def test_the_work_of_a_token(checkpoint: Checkpoint) -> None:
    with load_for(checkpoint, cases_of(8, 0), 1) as model:
        work = work_of(model.graph, model.lowered)
    head = tiny.VOCAB * tiny.DIM
    layers = tiny.LAYERS * sum(rows * columns for rows, columns in tiny.SHAPES.values())
    assert (work.layer_mads, work.head_mads) == (layers, head)
    assert (
        work.weight_bytes >= (layers + head) // 32 * 34
    )  # Q8_0: two bytes of scale for 32 weights
    assert work.prompt_mads(4) == layers + head / 4
    kv_bytes = tiny.LAYERS * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * 2  # keys and values in f16
    assert work.bytes_at(9) == work.weight_bytes + 10 * kv_bytes


@pytest.mark.slow
def test_results(checkpoint: Checkpoint) -> None:
    cases = cases_of(70, 5, depth=3)
    with load_for(checkpoint, cases, 1) as model:
        results = measure(model, cases, name="tiny", repetitions=2)
    assert [r.test for r in results] == ["pp70 @ d3", "tg5 @ d3"]
    for result in results:
        line = json.loads(json.dumps(result.as_dict()))
        assert (line["model"], line["threads"], line["repetitions"]) == ("tiny", 1, 2)
        assert line["tokens_per_s"] > 0
        assert line["tokens_per_s_sd"] >= 0
        expected = line["tokens_per_s"] / line["limit_tokens_per_s"]
        assert line["fraction_of_limit"] == pytest.approx(expected, abs=1e-4)


def test_a_prompt_longer_than_a_run(checkpoint: Checkpoint) -> None:
    cases = cases_of(600, 0)
    with load_for(checkpoint, cases, 1) as model:
        assert [r.test for r in measure(model, cases, name="t", repetitions=1)] == ["pp600"]


def test_nothing_to_measure() -> None:
    with pytest.raises(OptionError, match="-p and -n are both 0"):
        cases_of(0, 0)
