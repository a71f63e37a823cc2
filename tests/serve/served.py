"""A server in a thread of its own, with models that say what tests tell them."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
import ollama
import openai
from tests.engine.fake import FakeModel
from tests.test_api import make, says

from satchel.api import LLM
from satchel.serve.journal import Journal
from satchel.serve.models import Models
from satchel.serve.run import Http, listen, run
from satchel.serve.settings import Settings
from satchel.serve.state import Server

SAYS = "Grüß dich, Welt.\nUser:"


class Held(FakeModel):
    """Makes two steps, and no more until `go_on` is set: an answer that is in the making as long as
    a test wants it to be, however busy the machine.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.go_on = threading.Event()

    def run(self, batch: Any) -> Any:
        if len(self.batches) >= 2:
            assert self.go_on.wait(300)
        return super().run(batch)


def held(llm: LLM) -> threading.Event:
    """What lets a model go on that is a Held."""
    model = llm._speaker.model
    assert isinstance(model, Held)
    return model.go_on


class Served:
    """What tests reach of a running server: its address, its inside, its log, and clients."""

    def __init__(self, server: Server, url: str, log: list[str], models: list[LLM]) -> None:
        self.server = server
        self.url = url
        self.log = log
        self.made = models  # all that were ever loaded
        self.http: Http | None = None
        self.loop: asyncio.AbstractEventLoop
        self.port = int(url.rpartition(":")[2])

    @property
    def llm(self) -> LLM:
        return self.made[-1]

    def openai(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=300)

    def ollama(self) -> ollama.Client:
        return ollama.Client(host=self.url, timeout=300)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        if body is not None:
            options["json"] = body
        return httpx.post(self.url + path, timeout=300, **options)

    def get(self, path: str, **options: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=300, **options)

    def socket(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    def logged(self, *words: str, n: int = 1) -> list[str]:
        """The log's lines with these words, once there are n: they come after the answers."""

        def found() -> list[str]:
            return [line for line in self.log if all(word in line for word in words)]

        wait_for(lambda: len(found()) >= n)
        return found()

    def busy_pages(self) -> int:
        """Pages in use once all caches of conversations are given back."""
        engine = self.llm._speaker.engine
        wait_for(lambda: self.server.in_flight == 0 and not engine.has_work)
        for loaded in list(self.server.models.loaded.values()):
            loaded.sessions.close()
        engine.step()  # sessions give their pages back before the next step
        engine.scheduler.check()
        return self.llm.usage().pages_in_use


def wait_for(condition: Callable[[], bool], seconds: float = 300) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be"
        time.sleep(0.005)


@contextmanager
def serving(
    load: Callable[[str], LLM] | None = None,
    references: Sequence[str] = ("fake.gguf",),
    stored: dict[str, str] | None = None,
    **settings: Any,
) -> Generator[Served]:
    """A server on a free port; `load` makes its models, one that says SAYS by default."""
    made: list[LLM] = []
    log: list[str] = []

    def loading(reference: str) -> LLM:
        made.append(load(reference) if load else make(says(SAYS)))
        return made[-1]

    chosen = Settings(port=0, **settings)
    journal = Journal(chosen.log_json, log.append)
    models = Models(references, loading, chosen, journal, lambda: dict(stored or {}))
    server = Server(chosen, models, journal)
    listener = listen(chosen)
    served = Served(server, f"http://127.0.0.1:{listener.getsockname()[1]}", log, made)
    ready = threading.Event()

    def begun(http: Http) -> None:
        served.http = http
        served.loop = asyncio.get_running_loop()
        ready.set()

    thread = threading.Thread(target=lambda: asyncio.run(run(server, listener, begun)))
    thread.start()
    try:
        assert ready.wait(300)
        yield served
    finally:
        assert served.http
        served.loop.call_soon_threadsafe(served.http.end)
        thread.join(300)
        listener.close()
        assert not thread.is_alive(), "the server does not end"
