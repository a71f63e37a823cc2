"""Models being fetched for clients that watch how far they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

from satchel.base.errors import CancelledError
from satchel.files.store import resolve
from satchel.serve.failures import OverloadedError
from satchel.serve.state import Server

PERIOD_S = 0.1  # between two reports, but for the last one

Step = tuple[int, int | None]  # bytes that are there, bytes of all where they are known


class Pull:
    """One model being fetched, in a thread of its own. One at a time, in the whole server."""

    def __init__(self, server: Server, name: str) -> None:
        """Raises OverloadedError when another one is under way."""
        self._check_free(server)
        self._server, self._name = server, name
        self._loop = asyncio.get_running_loop()
        self._steps = asyncio.Queue[Step | None]()
        self._told_s = 0.0
        self._given_up = False

    async def steps(self) -> AsyncIterator[Step]:
        """How far it is, till it is there. Raises what `resolve` raises. When this is closed, or
        its task cancelled, the fetching ends.
        """
        self._check_free(self._server)
        self._server.pulling = True
        fetching = asyncio.ensure_future(
            asyncio.to_thread(resolve, self._name, report=self._report)
        )
        fetching.add_done_callback(lambda _: self._steps.put_nowait(None))
        try:
            while (step := await self._steps.get()) is not None:
                yield step
            await fetching
        finally:
            self._given_up = True
            await asyncio.gather(fetching, return_exceptions=True)
            self._server.pulling = False

    async def wait(self) -> None:
        """Till it is there."""
        async for _ in self.steps():
            pass

    @staticmethod
    def _check_free(server: Server) -> None:
        if server.pulling:
            raise OverloadedError("a model is being pulled; come back later")

    def _report(self, done: int, total: int | None) -> None:
        """Called by the thread that fetches."""
        if self._given_up:
            raise CancelledError("no one waits for this model any more")
        now = time.monotonic()
        if done == total or now - self._told_s >= PERIOD_S:
            self._told_s = now
            self._loop.call_soon_threadsafe(self._steps.put_nowait, (done, total))
