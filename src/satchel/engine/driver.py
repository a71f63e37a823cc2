"""The thread that runs the engine while there is work, and is gone when there is none.

It is a thread of its own, and not the caller's, so that an interrupt (Ctrl-C) never tears a step,
and so that one slow reader holds up no one else.
"""

from __future__ import annotations

import atexit
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from satchel.base.errors import CancelledError, MemoryLimitError, in_one_line
from satchel.base.threads import start
from satchel.engine.engine import Engine
from satchel.engine.request import Request

T = TypeVar("T")


class Driver:
    """Drives one engine on behalf of any number of threads."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.changed = threading.Condition()  # guards the two below; never held during a step
        self.thread: threading.Thread | None = None
        self.closed = False

    def submit(self, request: Request) -> None:
        """Sees a request through to its last delta; raises CancelledError after `close`."""
        self._add(lambda: self.engine.submit(request))

    def do(self, work: Callable[[], T]) -> T:
        """What `work` gives or raises, done between two steps; CancelledError after `close`."""
        done = SimpleQueue[Callable[[], T]]()

        def job() -> None:
            try:
                result = work()
            except Exception as error:  # noqa: BLE001 - it is the caller's, whatever it is
                raised = error

                def fail() -> T:
                    raise raised

                done.put(fail)
            else:
                done.put(lambda: result)

        self._add(lambda: self.engine.jobs.append(job))
        return done.get()()

    def close(self) -> None:
        """Ends all requests with CancelledError, within one step. May be called again."""
        with self.changed:
            self.closed = True
            self.changed.notify()
            thread = self.thread
        if thread is not None:
            thread.join()

    def _add(self, add: Callable[[], None]) -> None:
        with self.changed:
            if self.closed:
                raise CancelledError("this model was closed; load it again")
            if self.thread is None:
                self.thread = threading.Thread(target=self._drive, name="satchel", daemon=True)
                # a step must not be under way when the interpreter takes its memory down
                atexit.register(self.close)
                try:
                    start(self.thread)
                except MemoryLimitError:
                    self._forget_thread()
                    raise
            add()
            self.changed.notify()

    def _drive(self) -> None:
        while self._wait():
            try:
                deltas = self.engine.step()
            except Exception as error:  # noqa: BLE001 - whatever it is, those who wait must hear it
                deltas = self.engine.fail(in_one_line(error))
            for delta in deltas:
                delta.request.deliver(delta)
        if self.thread is threading.current_thread():  # it was closed
            for delta in self.engine.end(CancelledError("the model was closed meanwhile")):
                delta.request.deliver(delta)
            self.engine.upkeep.flush()
            with self.changed:
                self._forget_thread()

    def _wait(self) -> bool:
        """Sleeps until there is something to do; False when there will be nothing, or no more."""
        if self.engine.has_work and not self.closed:
            return True  # as most often, without a lock
        with self.changed:
            while not self.closed:
                if self.engine.has_work:
                    return True
                due_s = self.engine.due_s
                if due_s is None:
                    self._forget_thread()
                    break
                if (left_s := due_s - time.perf_counter()) <= 0:
                    return True
                self.changed.wait(left_s)
            return False

    def _forget_thread(self) -> None:
        self.thread = None
        atexit.unregister(self.close)
