"""A client that leaves: its answer ends within one step, and its pages come back."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.engine.fake import FakeModel
from tests.serve.served import Served, serving, wait_for
from tests.test_api import make, says

from satchel.serve import answers

COMPLETE, CHAT = "/v1/completions", "/v1/chat/completions"


class Gated(FakeModel):
    """Runs a step when told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.steps = threading.Semaphore(0)
        self.n_asked = 0

    def run(self, batch: Any) -> Any:
        self.n_asked += 1
        self.steps.acquire()
        return super().run(batch)


@pytest.fixture
def served() -> Iterator[Served]:
    """A server whose model waits for `allow` before each step; prompts take 32 tokens a step."""
    with serving(lambda _: make(says("x" * 200), kind=Gated)) as running:
        running.post("/api/generate", {"model": "fake"})  # loads it
        yield running
        model_of(running).steps.release(10_000)


def model_of(served: Served) -> Gated:
    model = served.llm._speaker.model
    assert isinstance(model, Gated)
    return model


def send(served: Served, path: str, body: dict[str, Any]) -> Any:
    raw = json.dumps(body).encode()
    client = served.socket()
    client.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(raw)}\r\n\r\n".encode()
        + raw
    )
    return client


ASKS = [
    (COMPLETE, {"prompt": "Say:", "stream": True}),
    (COMPLETE, {"prompt": "Say:"}),
    (COMPLETE, {"prompt": ["Say:", "Say: Say:"], "n": 2, "stream": True}),
    (CHAT, {"messages": [{"role": "user", "content": "Hi"}]}),
    ("/api/generate", {"model": "fake", "prompt": "Hi"}),
    ("/api/chat", {"model": "fake", "messages": [{"role": "user", "content": "Hi"}],
                   "stream": False}),
]  # fmt: skip


def ends_within_a_step(served: Served, leave: Callable[[], None]) -> None:
    """Leaves while a step is under way; there must be no step more."""
    model = model_of(served)
    n_asked = model.n_asked
    leave()
    requests = served.llm._speaker.engine.scheduler.requests()
    assert requests
    wait_for(lambda: all(request.cancelled for request in requests))
    model.steps.release(50)
    wait_for(lambda: served.server.in_flight == 0)
    assert model.n_asked <= n_asked, "steps were made for no one"
    assert served.busy_pages() == 0
    assert served.logged("status=499")


@pytest.mark.parametrize(("path", "body"), ASKS, ids=lambda value: str(value)[:40])
def test_while_it_is_answered(served: Served, path: str, body: dict[str, Any]) -> None:
    client = send(served, path, body)
    model_of(served).steps.release(6)
    wait_for(lambda: model_of(served).n_asked == 7)
    ends_within_a_step(served, client.close)


@pytest.mark.parametrize("stream", [True, False])
def test_while_its_prompt_is_computed(served: Served, stream: bool) -> None:
    client = send(served, COMPLETE, {"prompt": "x" * 200, "stream": stream})
    model_of(served).steps.release(2)  # 64 of 200 tokens
    wait_for(lambda: model_of(served).n_asked == 3)
    ends_within_a_step(served, client.close)


def test_others_go_on(served: Served) -> None:
    stays = served.openai().completions.create(model="fake", prompt="Say:", stream=True)
    goes = send(served, COMPLETE, {"prompt": "Say:"})
    wait_for(lambda: served.server.in_flight == 2)
    model_of(served).steps.release(5)
    goes.close()
    model_of(served).steps.release(10_000)
    assert "".join(chunk.choices[0].text for chunk in stays) == "x" * 200
    wait_for(lambda: served.server.in_flight == 0)


def test_a_clients_own_close(served: Served) -> None:
    stream = served.openai().completions.create(model="fake", prompt="Say:", stream=True)
    model_of(served).steps.release(5)
    wait_for(lambda: model_of(served).n_asked == 6)
    ends_within_a_step(served, stream.close)


def test_an_engine_that_has_stopped_holds_up_no_one_else(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "LET_GO_S", 0.05)
    client = send(served, COMPLETE, {"prompt": "Say:"})
    wait_for(lambda: model_of(served).n_asked == 1)
    client.close()  # and the step never ends
    wait_for(lambda: served.server.in_flight == 0)
    assert served.logged(" stuck ")


def test_many_that_leave_leave_nothing_behind() -> None:
    with serving(lambda _: make(says("x" * 200))) as served:
        for i in range(60):
            path, body = ASKS[i % len(ASKS)]
            client = send(served, path, body)
            time.sleep(0.001 * (i % 7))
            client.close()
        wait_for(lambda: served.server.in_flight == 0)
        assert served.busy_pages() == 0
        (loaded,) = served.server.models.loaded.values()
        assert loaded.n_users == 0
