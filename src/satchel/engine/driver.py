"""The thread that runs the engine while there is work, and is gone when there is none.

It is a thread of its own, and not the caller's, so that an interrupt (Ctrl-C) never tears a step,
and so that one slow reader holds up no one else.
"""

from __future__ import annotations

import atexit
import threading

from satchel.base.errors import CancelledError
from satchel.engine.engine import Engine
from satchel.engine.request import Request


class Driver:
    """Drives one engine on behalf of any number of threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.lock = threading.Lock()  # guards the two below; never held during a step
        self.thread: threading.Thread | None = None
        self.closed = False

    def submit(self, request: Request) -> None:
        """Sees a request through to its last delta; raises CancelledError after `close`."""
        with self.lock:
            if self.closed:
                raise CancelledError("this model was closed; load it again")
            self.engine.submit(request)
            if self.thread is None:
                self.thread = threading.Thread(target=self._drive, name="satchel", daemon=True)
                # a step must not be under way when the interpreter takes its memory down
                atexit.register(self.close)
                self.thread.start()

    def close(self) -> None:
        """Ends all requests with CancelledError, within one step. May be called again."""
        with self.lock:
            self.closed = True
            thread = self.thread
        if thread is not None:
            thread.join()

    def _drive(self) -> None:
        while True:
            with self.lock:
                closed = self.closed
                if closed or not self.engine.has_work:
                    self.thread = None
                    atexit.unregister(self.close)
                    break
            try:
                deltas = self.engine.step()
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear it
                deltas = self.engine.fail(error)
            for delta in deltas:
                delta.request.deliver(delta)
        if closed:
            for delta in self.engine.end(CancelledError("the model was closed meanwhile")):
                delta.request.deliver(delta)
