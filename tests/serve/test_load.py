"""The load client, on a server that it knows all about."""

from __future__ import annotations

import json

import pytest
from bench.load import main, percentile, prompts, table
from tests.serve.served import Served, serving
from tests.test_api import make, says


def test_the_figures(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--url {served.url} --clients 1,3 --requests 4 --max-tokens 6 --prompt-words 5"
    assert main(words.split()) == 0
    one, three = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (one["clients"], three["clients"], one["requests"], three["requests"]) == (1, 3, 4, 6)
    for found in (one, three):
        assert found["failures"] == 0
        tokens = found["tokens_per_s"] / found["requests_per_s"]
        assert tokens == pytest.approx(6, rel=0.1)
        assert 0 < found["ttft_ms_p50"] <= found["ttft_ms_p99"]
        assert 0 < found["inter_token_ms_p50"] <= found["inter_token_ms_p99"]


def test_a_mixed_load(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"--url {served.url} --clients 2 --requests 6 --max-tokens 6 --prompt-words 2"
    assert main([*words.split(), "--long-every", "3", "--long-words", "12"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["requests"], found["long_requests"], found["failures"]) == (6, 2, 0)
    assert found["long_ttft_ms_p50"] > 0
    assert found["inter_token_ms_p99"] <= found["inter_token_ms_max"]


def test_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(lambda _: make(says("x" * 100), context_length=64)) as served:
        words = f"--url {served.url} --clients 1 --requests 2 --prompt-words 60"
        assert main(words.split()) == 1
        found = json.loads(capsys.readouterr().out)
        assert (found["requests"], found["failures"]) == (0, 2)
        assert "context_length_exceeded" in found["failure"]


def test_no_two_prompts_begin_alike() -> None:
    made = prompts(30, 10, "a")
    assert len({prompt.split(":")[0] for prompt in made}) == 30
    lengths = [len(prompt.split()) for prompt in prompts(6, 5, "a", every=3, long_words=9)]
    assert lengths == [10, 10, 14, 10, 10, 14]


def test_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 50), percentile(values, 99), percentile([], 50)) == (51, 100, None)


def test_a_table_of_medians(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    urls = f"--url {served.url} --url {served.url.replace('127.0.0.1', 'localhost')}"
    words = f"{urls} --rounds 2 --clients 1 --requests 2 --max-tokens 4 --prompt-words 3 --table"
    assert main(words.split()) == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [line["round"] for line in lines] == [0, 0, 1, 1]
    assert printed.err.strip() == table(lines)
    for line in lines:
        line["tokens_per_s"] = 10.0 + line["round"]
    lines[0]["ttft_ms_p50"] = lines[2]["ttft_ms_p50"] = None
    head, _, one, other = table(lines).splitlines()
    assert head.startswith("| clients | server | requests_per_s | tokens_per_s |")
    assert one.split(" | ")[3:5] == ["10.5", "-"]
    assert other.split(" | ")[3] == "10.5"
