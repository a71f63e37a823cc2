"""Work, memory and speed of a tiny model."""

from __future__ import annotations

import json

import pytest
from tests.measure import tiny

from satchel.archs import trace
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.measure.bench import measure
from satchel.measure.forecast import forecast
from satchel.measure.work import work_of


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    return open_checkpoint(tiny.write_tiny(tmp_path_factory.mktemp("model") / "tiny.gguf"))


def test_the_work_of_a_token(checkpoint: Checkpoint) -> None:
    head = tiny.VOCAB * tiny.DIM
    mads = head + tiny.LAYERS * sum(rows * columns for rows, columns in tiny.SHAPES.values())
    work = work_of(trace(checkpoint))
    assert (work.mads, work.head_mads) == (mads, head)
    assert work.weight_bytes == mads // 32 * 34  # Q8_0: a scale of two bytes for 32 weights


def test_the_memory_forecast(checkpoint: Checkpoint) -> None:
    short, long = forecast(checkpoint, 64), forecast(checkpoint, 256)
    per_token = tiny.LAYERS * 2 * tiny.KV_HEADS * tiny.HEAD_DIM * 2  # keys and values in f16
    assert (short.kv, long.kv) == (64 * per_token, 256 * per_token)
    assert short.weights <= long.weights  # with them lie the turns of all positions
    assert checkpoint.n_bytes * 0.8 < short.weights < checkpoint.n_bytes * 2
    assert 0 < short.activations <= long.activations
    assert long.total == long.weights + long.kv + long.activations


def test_results(checkpoint: Checkpoint) -> None:
    results = list(
        measure(checkpoint, name="tiny", n_prompt=70, n_generate=5, threads=1, repetitions=2)
    )
    assert [r.test for r in results] == ["pp70", "tg5"]
    for result in results:
        line = json.loads(json.dumps(result.as_dict()))
        assert (line["model"], line["threads"], line["repetitions"]) == ("tiny", 1, 2)
        assert line["tokens_per_s"] > 0
        assert line["tokens_per_s_sd"] >= 0
        expected = line["tokens_per_s"] / line["limit_tokens_per_s"]
        assert line["fraction_of_limit"] == pytest.approx(expected, abs=1e-4)
    only = measure(checkpoint, name="tiny", n_prompt=0, n_generate=1, threads=1, repetitions=1)
    assert [r.test for r in only] == ["tg1"]


def test_a_prompt_longer_than_a_run(checkpoint: Checkpoint) -> None:
    found = measure(checkpoint, name="t", n_prompt=600, n_generate=0, threads=1, repetitions=1)
    assert [r.test for r in found] == ["pp600"]
