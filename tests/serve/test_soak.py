"""A minute of `bench/soak.py`: clients of all kinds, a kill, restarts; and its own parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from bench.soak import Wire, main, make_asks, said_by
from tests.serve.served import serving
from tests.test_api import make, says


@pytest.mark.slow
def test_a_minute_of_all_kinds_of_clients(
    smollm2: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([str(smollm2), "--minutes", "1", "--clients", "6"])
    found = json.loads(capsys.readouterr().out)
    assert found["wrong"] == []
    assert code == 0
    assert [life["ended_by"] for life in found["lives"]] == ["SIGKILL", "SIGTERM", "SIGTERM"]
    for deed in ("compare", "leave", "damage", "look"):
        assert found["did"][deed] > 0


def test_streams_and_whole_answers_say_the_same() -> None:
    with serving(lambda _: make(says("Hm."), context_length=1024, n_pages=64)) as served:
        wire = Wire(served.port)
        ask = next(ask for ask in make_asks() if ask.body.get("n") == 3)
        whole = wire.ask(ask, stream=False)
        assert wire.ask(ask, stream=True) == whole
        assert len(whole) == 3


def test_what_is_said_is_told_apart() -> None:
    one = {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]}
    other = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}]}
    assert said_by([one]) == [("a", [], "stop")] != said_by([other])
    with pytest.raises(ValueError, match="broken"):
        said_by([{"error": {"message": "broken", "code": "internal_error"}}])
