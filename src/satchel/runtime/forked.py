"""Work in forked children: for what needs the interpreter, or may take its process down."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Sequence
from typing import NoReturn

from satchel.base.errors import KernelError, SatchelError

_Result = bytes | Exception


def map_forked(tasks: Sequence[Callable[[], bytes]], n_workers: int) -> list[bytes]:
    """What the tasks return, in order, computed by `n_workers` children of this process.

    They inherit this process as it is, so tasks may be closures; no other thread may be inside LLVM
    meanwhile. Raises the first SatchelError of a task, and KernelError when a child dies.
    """
    import pickle

    queue, feed = os.pipe()  # of task numbers: whoever is free reads the next one
    os.set_blocking(feed, False)  # it holds 64 KiB; more tasks than that are a mistake
    os.write(feed, b"".join(i.to_bytes(4, "little") for i in range(len(tasks))))
    os.close(feed)
    children = [_start(tasks, queue) for _ in range(n_workers)]
    os.close(queue)
    results: dict[int, _Result] = {}
    died = 0
    left = dict(children)
    try:
        for pid, pipe in children:
            with os.fdopen(pipe, "rb", closefd=False) as stream:
                raw = stream.read()
            status = _end(pid, left.pop(pid))
            if status == 0:
                results.update(pickle.loads(raw))
            died = died or status
    finally:  # after Ctrl-C there may be some that no one waits for
        for pid, pipe in left.items():
            os.kill(pid, signal.SIGKILL)
            _end(pid, pipe)
    if died:
        raise KernelError(f"a process that compiles kernels died (status {died}); see its message")
    return [_unwrap(results[i]) for i in range(len(tasks))]


def _start(tasks: Sequence[Callable[[], bytes]], queue: int) -> tuple[int, int]:
    """A child at work: its process id, and the pipe that its results will come through."""
    receive, send = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads are no part of this
        pid = os.fork()
    if pid == 0:
        os.close(receive)
        _work(tasks, queue, send)
    os.close(send)
    return pid, receive


def _end(pid: int, pipe: int) -> int:
    """Waits for a child; its status."""
    os.close(pipe)
    return os.waitpid(pid, 0)[1]


def _work(tasks: Sequence[Callable[[], bytes]], queue: int, send: int) -> NoReturn:
    """The child: do tasks until none is left, hand over, and end at once."""
    import pickle
    import traceback

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's, which ends us
    status = 1
    try:
        results: dict[int, _Result] = {}
        while number := os.read(queue, 4):
            index = int.from_bytes(number, "little")
            try:
                results[index] = tasks[index]()
            except SatchelError as error:
                results[index] = error
        try:
            with os.fdopen(send, "wb") as stream:
                stream.write(pickle.dumps(results))
        except BrokenPipeError:
            os._exit(status)  # the parent has gone
        status = 0
    finally:
        if status:
            traceback.print_exc()
        os._exit(status)


def _unwrap(result: _Result) -> bytes:
    if isinstance(result, Exception):
        raise result
    return result
