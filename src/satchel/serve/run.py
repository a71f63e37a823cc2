"""The server's life: load, listen, and on SIGTERM or Ctrl-C end gracefully."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from satchel.api import LLM
from satchel.base import log
from satchel.base.errors import OptionError
from satchel.base.threads import room_for_a_thread
from satchel.files.store import resolve
from satchel.machine.memory import watch_pressure
from satchel.serve.app import make_app
from satchel.serve.journal import Forward, Journal
from satchel.serve.models import Models
from satchel.serve.settings import Settings
from satchel.serve.state import Server

P = ParamSpec("P")
T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)
M_ARENA_MAX = -8  # of glibc's malloc.h


class Http(uvicorn.Server):
    """uvicorn's server, but that it does nothing while nothing comes, and ends when told."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ending = asyncio.Event()

    async def main_loop(self) -> None:
        """Sleeps; uvicorn's own wakes ten times a second."""
        await self.ending.wait()

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are ours, see `serve`: after uvicorn's handlers the process would die of them."""
        yield

    def end(self) -> None:
        """Lets running answers finish within the grace time; a second time cuts them short."""
        self.force_exit = self.ending.is_set()
        self.should_exit = True
        self.ending.set()


class Threads(ThreadPoolExecutor):
    """What the event loop has others do; it never waits for a thread that can't begin."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Raises MemoryLimitError where the system has no room for a thread that is needed."""
        with room_for_a_thread():
            return super().submit(fn, *args, **kwargs)


def protocol(head_s: float) -> type[H11Protocol]:
    """uvicorn's HTTP, but that the head of each request must be there within `head_s` seconds."""

    class Timed(H11Protocol):
        timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self.expect()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            # uvicorn sets the cycle when a head is complete
            if self.cycle is not None and not self.cycle.response_complete:  # pyright: ignore[reportUnnecessaryComparison]
                self.relax()
            elif self.timer is None:
                self.expect()

        def connection_lost(self, exc: Exception | None) -> None:
            self.relax()
            super().connection_lost(exc)

        def expect(self) -> None:
            self.timer = self.loop.call_later(head_s, self.transport.close)

        def relax(self) -> None:
            if self.timer is not None:
                self.timer.cancel()
                self.timer = None

    return Timed


def listen(settings: Settings) -> socket.socket:
    """The socket to serve on. Raises OptionError when the address can't be had."""
    # asyncio turns Nagle's delay (40 ms) off for sockets that say that they are TCP's
    tcp = (socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        (family, *_, address), *_ = socket.getaddrinfo(
            settings.host.strip("[]"), settings.port, 0, *tcp, socket.AI_PASSIVE
        )
        listener = socket.socket(family, *tcp)
        try:
            if os.name == "posix":  # elsewhere it would let two servers have one port
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(512)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise OptionError(
            f"can't listen on {settings.host} port {settings.port}: {error.strerror}; "
            "choose another by --port"
        ) from None


def http_server(server: Server) -> Http:
    """The HTTP server of a server's app."""
    settings = server.settings
    for name in ("uvicorn.error", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [Forward(server.journal)], False
    return Http(
        uvicorn.Config(
            make_app(server),
            http=protocol(settings.head_s),
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, round(settings.grace_s)),
            h11_max_incomplete_event_size=settings.max_head_bytes,
        )
    )


async def run(server: Server, listener: socket.socket, ready: Callable[[Http], None]) -> None:
    """Serves until `Http.end` is called; `ready` gets the server before it takes requests."""
    asyncio.get_running_loop().set_default_executor(Threads(thread_name_prefix="satchel-serve"))
    http = http_server(server)
    watch = watch_pressure()
    if watch:

        def act() -> None:
            watch.clear()
            server.models.relieve()

        asyncio.get_running_loop().add_reader(watch.fileno(), act)
    ready(http)
    try:
        await http.serve(sockets=[listener])
    finally:
        if watch:
            asyncio.get_running_loop().remove_reader(watch.fileno())
            watch.close()
        tasks = list(http.server_state.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.models.close()


def keep_one_heap() -> None:
    """Has glibc's malloc share one heap among all threads.

    Of its own, each thread gets one, and what they free lies scattered: after minutes of many
    clients the process had grown by a third, of free memory that none got (docs/facts-server.md).
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):  # other libraries than glibc have none
            libc.mallopt(M_ARENA_MAX, 1)


def serve(references: Sequence[str], settings: Settings, load: Callable[[str], LLM]) -> int:
    """Serves models till a signal comes; the exit code. Raises SatchelError when it can't begin."""
    keep_one_heap()
    journal = Journal(settings.log_json)
    with log.told(journal.hear):
        for reference in references:
            resolve(reference)  # what can't be had is better known now
        with listen(settings) as listener:
            asyncio.run(_serve(references, settings, load, listener, journal))
    return 0


async def _serve(
    references: Sequence[str],
    settings: Settings,
    load: Callable[[str], LLM],
    listener: socket.socket,
    journal: Journal,
) -> None:
    server = Server(settings, Models(references, load, settings, journal), journal)
    if references:
        server.models.give(await server.models.take(None))
    host, port = listener.getsockname()[:2]

    def ready(http: Http) -> None:
        on_signals(asyncio.get_running_loop(), http.end)
        shown = f"[{host}]" if ":" in host else host
        here = "localhost" if host in ("0.0.0.0", "::") else shown  # where a browser here finds it
        journal.write("ready", url=f"http://{shown}:{port}", chat=f"http://{here}:{port}/")

    await run(server, listener, ready)
    journal.write("ended")


def on_signals(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Has the loop call `act` on each signal that asks the process to end."""

    def handle(*_: Any) -> None:
        loop.call_soon_threadsafe(act)

    for number in SIGNALS:
        signal.signal(number, handle)
