"""When memory is short: what goes, in which order, and that no answer changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.fake import FakeModel
from tests.test_api import make, says

from satchel import LLM
from satchel.base.errors import MemoryLimitError
from satchel.engine import relief
from satchel.engine.relief import ALL, HALF, REFUSE, RESERVE_BYTES
from satchel.machine.memory import Pressure
from satchel.runtime.batch import PAGE

GREEDY: Any = {"temperature": 0, "max_tokens": 3}
CALM = Pressure(0.0, 1 << 40)
SHORT = Pressure(0.0, RESERVE_BYTES - 1)
STALLED = Pressure(0.2, 1 << 40)


class Gauge:
    """A pressure that tests set, seen at once."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = CALM
        self.relief = llm._speaker.engine.relief
        self.relief.read = lambda: self.now
        monkeypatch.setattr(relief, "PERIOD_S", 0.0)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make(says("x")) as made:
        yield made


@pytest.fixture
def gauge(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Gauge:
    return Gauge(llm, monkeypatch)


def kept(llm: LLM) -> int:
    return llm.usage().pages_kept


def fill(llm: LLM) -> None:
    for letter in "abcd":
        llm.generate(letter * 2 * PAGE, **GREEDY)


def tend(llm: LLM) -> None:
    """A look between two steps."""
    speaker = llm._speaker
    speaker.driver.do(lambda: None)


def test_nothing_is_done_while_there_is_enough(llm: LLM, gauge: Gauge) -> None:
    fill(llm)
    before = kept(llm)
    tend(llm)
    assert (kept(llm), gauge.relief.stage) == (before, 0)
    assert llm.usage().memory.given_back == 0


@pytest.mark.parametrize("pressure", [SHORT, STALLED])
def test_the_order(
    llm: LLM, gauge: Gauge, pressure: Pressure, capfd: pytest.CaptureFixture[str]
) -> None:
    fill(llm)
    before, taken = kept(llm), llm.usage().memory.kv_taken
    gauge.now = pressure
    tend(llm)
    assert gauge.relief.stage == HALF
    assert 0 < kept(llm) <= before // 2
    assert llm.usage().memory.kv_taken <= taken - before // 2 * 512
    tend(llm)
    assert (gauge.relief.stage, kept(llm), llm.usage().memory.kv_taken) == (ALL, 0, 0)
    assert llm.usage().memory.given_back == taken
    tend(llm)
    assert gauge.relief.stage == REFUSE
    with pytest.raises(MemoryLimitError, match=r"memory is short: .*come back later"):
        llm.generate("a", **GREEDY)
    with pytest.raises(MemoryLimitError, match="memory is short"):
        llm.embed("a")
    assert llm.usage().memory.refused == 2
    gauge.now = CALM
    assert llm.generate("Say:", **GREEDY).text == "x"
    assert gauge.relief.stage == 0
    said = [line for line in capfd.readouterr().err.splitlines() if "memory is short" in line]
    assert len(said) == 3


def test_the_coldest_go_first(llm: LLM, gauge: Gauge) -> None:
    fill(llm)
    gauge.now = SHORT
    tend(llm)
    gauge.now = CALM
    assert llm.generate("d" * 2 * PAGE, **GREEDY).stats.cached_tokens >= PAGE
    assert llm.generate("a" * 2 * PAGE, **GREEDY).stats.cached_tokens == 0


def test_running_answers_go_on_and_stay_the_same(llm: LLM, gauge: Gauge) -> None:
    options: Any = {"temperature": 0.7, "seed": 5, "max_tokens": 100, "ignore_eos": True}
    want = llm.generate("b" * 70, **options).tokens
    fill(llm)
    with llm.stream("b" * 70, **options) as stream:
        next(stream)
        gauge.now = SHORT
        assert stream.result().tokens == want
    assert gauge.relief.stage == REFUSE
    gauge.now = CALM
    assert llm.generate("b" * 70, **options).tokens == want


def test_a_limit_of_the_process(llm: LLM, gauge: Gauge) -> None:
    gauge.relief.limit = 1 << 50
    assert llm.generate("Say:", **GREEDY).text == "x"
    gauge.relief.limit = 1
    for _ in range(4):
        tend(llm)
    with pytest.raises(MemoryLimitError, match="more than 1 B are taken"):
        llm.generate("a", **GREEDY)


def test_it_looks_once_a_second(llm: LLM) -> None:
    looks = 0

    def look() -> Pressure:
        nonlocal looks
        looks += 1
        return CALM

    llm._speaker.engine.relief.read = look
    llm.generate("Say:", temperature=0, max_tokens=30, ignore_eos=True)
    assert looks <= 2
    assert isinstance(llm._speaker.model, FakeModel)
