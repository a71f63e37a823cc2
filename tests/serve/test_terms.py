"""A request's priority, its time, and whose it is."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.fake import FakeModel
from tests.serve.served import Served, serving
from tests.test_api import make, says

COMPLETE = "/v1/completions"
ASK = {"model": "fake", "prompt": "Say:", "max_tokens": 60, "temperature": 0}


class Slow(FakeModel):
    """Takes its time for a step."""

    def run(self, batch: Any) -> Any:
        time.sleep(0.005)
        return super().run(batch)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with serving(lambda _: make(says("x" * 200), kind=Slow)) as running:
        yield running


def test_an_answer_that_takes_too_long_is_a_503(served: Served) -> None:
    answer = served.post(COMPLETE, {**ASK, "timeout_s": 0.05})
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "timeout"
    assert served.post(COMPLETE, {**ASK, "timeout_s": 60}).status_code == 200


def test_a_stream_that_takes_too_long_ends_with_an_error(served: Served) -> None:
    events: list[str] = []
    for seconds in (0.1, 0.3, 0.6):  # on a busy machine the first token may take so long
        body = {**ASK, "max_tokens": 200, "timeout_s": seconds, "stream": True}
        answer = served.post(COMPLETE, body)
        events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
        if len(events) > 1:
            break
    assert len(events) > 1
    assert json.loads(events[-1])["error"]["code"] == "timeout"


def test_priorities_and_users_change_no_answer(served: Served) -> None:
    plain = served.post(COMPLETE, ASK).json()["choices"]
    asked = {**ASK, "priority": 5, "user": "me"}
    assert served.post(COMPLETE, asked).json()["choices"] == plain


@pytest.mark.parametrize(
    "field", [{"priority": 101}, {"priority": 0.5}, {"timeout_s": 0}, {"timeout_s": "1"}]
)
def test_terms_that_make_no_sense_are_named(served: Served, field: dict[str, Any]) -> None:
    answer = served.post(COMPLETE, {**ASK, **field})
    assert answer.status_code == 400
    assert next(iter(field)) in answer.json()["error"]["message"]
