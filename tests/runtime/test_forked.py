"""Work in forked children, and Ctrl-C while they work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from satchel.base.errors import KernelError, OptionError
from satchel.runtime.forked import map_forked

INTERRUPTED = """
import os, signal, threading, time
from satchel.runtime.forked import map_forked

signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it

def slow():
    time.sleep(60)
    return b""

threading.Timer(0.2, os.killpg, (0, signal.SIGINT)).start()  # a terminal tells all processes
try:
    map_forked([slow, slow], 2)
except KeyboardInterrupt:
    print("ended")
try:
    os.waitpid(-1, os.WNOHANG)
except ChildProcessError:
    print("none left")
"""


def test_results_are_in_order() -> None:
    tasks = [lambda i=i: str(i).encode() for i in range(20)]
    assert map_forked(tasks, 3) == [str(i).encode() for i in range(20)]


def test_an_error_comes_through_and_a_death_is_told() -> None:
    def fails() -> bytes:
        raise OptionError("no")

    def dies() -> bytes:
        os._exit(3)

    with pytest.raises(OptionError, match="no"):
        map_forked([fails], 1)
    with pytest.raises(KernelError, match="died"):
        map_forked([dies, lambda: b""], 2)


def test_after_ctrl_c_no_child_is_left_and_none_says_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
        start_new_session=True,
        timeout=50,
    )
    assert (done.stdout, done.stderr) == ("ended\nnone left\n", "")
