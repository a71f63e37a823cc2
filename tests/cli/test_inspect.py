"""`show`, `bench`, `explain`, `doctor`, `list` and `pull`, on a tiny model made here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.measure.tiny import write_tiny


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tiny model's path; the caches are empty folders."""
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    return str(write_tiny(tmp_path / "tiny.gguf"))


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_show(model: str, call: Call) -> None:
    done = call("show", model, "-c", "128")
    assert (done.code, done.err) == (0, "")
    for said in ("llama", "embedding_length", "Q8_0", "F32", "context of 128 tokens", "KV cache"):
        assert said in done.out
    [found] = lines(call("show", model, "-c", "128", "--json").out)
    assert found["arch"] == "llama"
    assert found["numbers"]["block_count"] == 2
    assert found["tokenizer"] == {"tokens": 128, "model": "gpt2"}
    memory = found["memory"]
    assert isinstance(memory, dict)
    assert (memory["context"], memory["parallel"], memory["cache_types"]) == (128, 1, ["f16"] * 2)
    assert memory["kv_groups"] == [{"window": None, "bytes": memory["kv_bytes"]}]
    parts = ("weights_bytes", "kv_bytes", "activations_bytes", "process_bytes")
    assert memory["total_bytes"] == sum(memory[part] for part in parts)
    assert {row["format"]: row["tensors"] for row in found["formats"]} == {"Q8_0": 16, "F32": 5}
    failed = call("show", model, "-c", "9999")
    assert (failed.code, failed.err.count("\n")) == (2, 1)


def test_what_would_fit(model: str, call: Call) -> None:
    done = call("show", model, "-np", "4", "--memory", "1G")
    assert done.code == 0
    assert "4 times a context" in done.out
    failed = call("show", model, "--memory", "20M")
    assert (failed.code, failed.err.count("\n")) == (1, 1)
    assert "weights" in failed.err
    assert "21 MB are allowed" in failed.err
    failed = call("bench", model, "-t", "1", "--memory", "20M")
    assert (failed.code, failed.err.count("\n")) == (1, 1)
    assert call("show", model, "--memory", "much").code == 2


@pytest.mark.slow
def test_bench(model: str, call: Call) -> None:
    words = ["bench", model, "-p", "16", "-n", "2", "-r", "1", "-t", "1"]
    pp, tg = lines(call(*words, "--json").out)
    assert (pp["test"], tg["test"]) == ("pp16", "tg2")
    for key in ("model", "threads", "tokens_per_s", "tokens_per_s_sd", "limit_tokens_per_s"):
        assert key in pp
    table = call(*words).out.splitlines()
    assert table[0].split() == ["model", "test", "threads", "tokens/s", "limit", "of", "limit"]
    assert len(table) == 3
    assert call("bench", model, "-p", "0", "-n", "0").code == 2


@pytest.mark.slow
def test_explain(model: str, call: Call) -> None:
    done = call("explain", model, "--layer", "1")
    assert done.code == 0
    for stage in ("--- graph, layer 1", "--- plan, layer 1", ": LLVM", ": assembly"):
        assert stage in done.out
    assert "linear(" in done.out
    stages = lines(call("explain", model, "--json").out)
    assert all(stage["stage"] and stage["text"] for stage in stages)
    assert call("explain", model, "--layer", "2").err.startswith(
        "satchel: error: there is no layer"
    )


def test_doctor(model: str, call: Call) -> None:
    [found] = lines(call("doctor", "--json", "-t", "1").out)
    assert found["limits"]["threads"] == 1
    assert found["limits"]["read_bytes_per_s"] > 1e8
    assert found["limits"]["mads_per_s"] > 1e8
    assert set(found["target"]["features_used"]) <= set(found["machine"]["features_found"])
    kept = found["cache"]["bytes"]["objects"]
    assert kept > 0
    assert found["target"]["name"] in call("doctor", "-t", "1").out
    cleared = call("doctor", "--clear-cache")
    assert (cleared.code, cleared.out) == (0, "")
    assert lines(call("doctor", "--json", "-t", "1").out)[0]["machine"] == found["machine"]


def test_list_and_pull_and_rm(model: str, call: Call) -> None:
    assert call("list").err == "no models are here yet; try: satchel pull smollm2\n"
    assert call("list", "--json").out == ""
    assert call("pull", model).out == model + "\n"
    refused = call("rm", model)
    assert (refused.code, refused.out) == (1, "")
    assert Path(model).exists()


def test_a_damaged_file_is_one_line(tmp_path: Path, call: Call) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"no model at all, however long it may be")
    for command in ("show", "bench", "explain"):
        failed = call(command, str(path))
        assert (failed.code, failed.out, failed.err.count("\n")) == (1, "", 1)
        assert failed.err.startswith(f"satchel: error: {path}: not a GGUF file")
