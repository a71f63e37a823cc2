"""What cache types cost: the measuring itself, and its command."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Call, call  # noqa: F401  (a fixture)
from tests.measure.tiny import VOCAB, write_tiny

from satchel.compiler.model import load_model
from satchel.engine.cache_loss import read_losses
from satchel.files.checkpoint import open_checkpoint
from satchel.measure import kv
from satchel.measure.accuracy import agreement
from satchel.measure.kv import CacheLoss, batch_of, measure_cache, steps


def test_steps_cover_every_token_once_in_contexts_of_their_own() -> None:
    found = list(steps(300, 130))
    assert [i for rows, _, _ in found for i in range(300)[rows]] == list(range(300))
    assert [(start, end) for _, start, end in found] == [
        (0, 64), (64, 128), (128, 130), (0, 64), (64, 128), (128, 130), (0, 40),
    ]  # fmt: skip


@pytest.mark.slow
def test_measured_as_the_logits_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    checkpoint = open_checkpoint(write_tiny(tmp_path / "tiny.gguf"))
    ids = np.random.default_rng(0).integers(0, VOCAB, 150, np.int32)
    told: list[int] = []
    pairs = [("bf16", "f16"), ("int4", "int8")]
    both = list(
        measure_cache(checkpoint, ids.tolist(), pairs, context=100, threads=1, progress=told.append)
    )
    assert [loss.types for loss in both] == pairs
    assert [loss.kv_bytes for loss in both] == [2 * (64 + 64), 2 * (16 + 2 + 32 + 2)]
    assert told == [64, 128, 164, 200, 250, 300]
    logits: list[np.ndarray[Any, Any]] = []
    for types in (("f16", "f16"), ("int4", "int8")):
        with load_model(checkpoint, context=100, threads=1, cache_types=types) as model:
            parts = [model.run(batch_of(model, ids[r], a, b)).copy() for r, a, b in steps(150, 100)]
            logits.append(np.concatenate(parts))
    assert both[1].found == agreement(*logits)
    assert both[1].found.mean_kl > both[0].found.mean_kl > 0


def test_the_command_prints_and_keeps(
    call: Call,  # noqa: F811
    smollm2: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    asked: list[Any] = []

    def measured(
        _: object, tokens: list[int], pairs: Any, *, context: int, **other: Any
    ) -> Iterator[CacheLoss]:
        asked.append((len(tokens), list(pairs), context))
        for i, types in enumerate(pairs):
            yield CacheLoss(types, 99, agreement(np.eye(3), np.eye(3) * (1 + i)))

    monkeypatch.setattr(kv, "measure_cache", measured)
    done = call("measure", "kv", str(smollm2), "-n", "70", "-ctk", "q4_0", "-c", "64", "--json")
    assert (done.code, done.err) == (0, "not kept: 70 tokens say little, 1024 are the least\n")
    assert read_losses(open_checkpoint(smollm2)) == {}
    assert asked == [(70, [("int4", "f16")], 64)]
    line = json.loads(done.out)
    assert line["model"] == str(smollm2)
    assert (line["cache_type_k"], line["cache_type_v"]) == ("int4", "f16")
    assert (line["mean_kl"], line["top1"], line["refused"]) == (0, 1, False)
    done = call("measure", "kv", str(smollm2))
    assert done.err == ""
    assert asked[1][1] == list(kv.PAIRS)
    assert "yes" in done.out
    assert read_losses(open_checkpoint(smollm2)).keys() == set(kv.PAIRS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["measure"], "is none of: kv"),
        (["measure", "speed", "m"], "'speed' is none of: kv"),
        (["measure", "kv"], "which model?"),
        (["measure", "kv", "smollm2", "-ctv", "q2"], "--cache-type-v: 'q2' is none of"),
    ],
)
def test_refusals(call: Call, words: list[str], said: str) -> None:  # noqa: F811
    done = call(*words)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_types_that_lose_too_much_are_refused(call: Call, smollm2: Path) -> None:  # noqa: F811
    done = call("run", str(smollm2), "Hi", "-ctk", "int4")
    assert done.code == 2
    assert "lose too much" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_a_real_model(smollm2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Int8 costs little, int4 keys much, and rotated ones less."""
    from satchel.measure.accuracy import sample_text
    from satchel.text import load_tokenizer

    checkpoint = open_checkpoint(smollm2)
    ids = load_tokenizer(checkpoint.metadata).encode(sample_text())[:256]
    pairs = [("int8", "int8"), ("int4", "f16"), ("int4-rot", "f16")]
    int8, int4, rotated = measure_cache(checkpoint, ids, pairs, context=256)
    assert int8.found.mean_kl < 0.005
    assert int8.found.top1 > 0.96
    assert int4.found.mean_kl > 2 * rotated.found.mean_kl
    assert int4.refused
