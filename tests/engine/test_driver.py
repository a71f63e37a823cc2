"""One thread drives while there is work; many may ask at once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest
from tests.engine.asks import Ask
from tests.engine.fake import FakeModel

from satchel.base.errors import CancelledError, KernelError
from satchel.base.options import child_environment
from satchel.engine.driver import Driver
from satchel.engine.engine import Engine
from satchel.engine.request import Delta
from satchel.engine.stream import Stream

ROOT = Path(__file__).parents[2]


def start(driver: Driver, prompt: list[int], n: int = 8) -> Stream:
    deltas = SimpleQueue[Delta]()
    ask = Ask(driver.engine, prompt, n)
    ask.deliver = deltas.put
    driver.submit(ask)
    return Stream(ask, deltas)


def wait_until_idle(driver: Driver) -> None:
    thread = driver.thread
    if thread:
        thread.join(60)
        assert not thread.is_alive()


def test_many_threads_hear_what_each_would_hear_alone() -> None:
    def ask_all(n_threads: int) -> list[tuple[int, ...]]:
        model = FakeModel(n_pages=8)
        driver = Driver(Engine(model))
        answers: dict[int, tuple[int, ...]] = {}

        def ask(number: int) -> None:
            for k in range(number, 24, n_threads):
                answers[k] = start(driver, [k] * (1 + 5 * k), 20).result().tokens

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(n_threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        wait_until_idle(driver)
        assert driver.engine.usage().pages_in_use == 0
        return [answers[k] for k in range(24)]

    assert ask_all(6) == ask_all(1)


def test_no_thread_is_left_when_there_is_no_work() -> None:
    driver = Driver(Engine(FakeModel()))
    assert driver.thread is None
    start(driver, [1]).result()
    wait_until_idle(driver)
    assert driver.thread is None
    assert len(start(driver, [1]).result().tokens) == 8


def test_an_error_of_the_model_reaches_those_who_wait() -> None:
    model = FakeModel()
    driver = Driver(Engine(model))
    model.error = KernelError("out of luck")
    with pytest.raises(KernelError, match="out of luck"):
        start(driver, [1]).result()
    assert len(start(driver, [1]).result().tokens) == 8


def test_any_error_at_all_reaches_those_who_wait() -> None:
    model = FakeModel()
    driver = Driver(Engine(model))
    model.error = ZeroDivisionError("a bug")
    with pytest.raises(ZeroDivisionError):
        start(driver, [1]).result()
    assert len(start(driver, [1]).result().tokens) == 8


class Slow(FakeModel):
    def run(self, batch):
        time.sleep(0.002)
        return super().run(batch)


def test_closing_ends_what_is_under_way() -> None:
    driver = Driver(Engine(Slow(context_length=1024)))
    stream = start(driver, [1], 1000)
    next(stream)
    driver.close()
    with pytest.raises(CancelledError, match="was closed"):
        stream.result()
    with pytest.raises(CancelledError, match="load it again"):
        start(driver, [1])
    driver.close()


def test_a_stream_that_is_left_is_cancelled() -> None:
    driver = Driver(Engine(Slow(context_length=1024)))
    with start(driver, [1], 1000) as stream:
        next(stream)
    assert stream.stats is not None
    assert stream.stats.finish_reason == "cancelled"
    assert stream.stats.generated_tokens < 1000
    assert list(stream) == []
    wait_until_idle(driver)
    assert driver.engine.usage().pages_in_use == 0


def test_a_stream_that_is_dropped_is_cancelled() -> None:
    driver = Driver(Engine(Slow(context_length=1024)))
    stream = start(driver, [1], 1000)
    next(stream)
    del stream
    wait_until_idle(driver)
    assert len(driver.engine.model.batches) < 900


def test_a_cancelled_stream_ends_with_its_stats() -> None:
    driver = Driver(Engine(Slow(context_length=1024)))
    stream = start(driver, [1], 1000)
    next(stream)
    stream.cancel()
    pieces = list(stream)
    assert pieces[-1].stats is not None
    assert pieces[-1].stats.finish_reason == "cancelled"
    assert stream.result().tokens == stream.tokens


@pytest.fixture
def interruptible() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, in jobs of a shell's background too."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_the_answer_and_nothing_else(interruptible: None) -> None:
    driver = Driver(Engine(Slow(context_length=1024)))
    timer = threading.Timer(0.05, signal.raise_signal, [signal.SIGINT])
    with start(driver, [1], 1000) as stream:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            stream.result()
    assert stream.stats is not None
    assert stream.stats.finish_reason == "cancelled"
    assert len(start(driver, [1]).result().tokens) == 8


def test_a_program_may_end_while_the_model_speaks() -> None:
    code = """
import time
from tests.engine.test_driver import Driver, Engine, Slow, start
stream = start(Driver(Engine(Slow(context_length=100_000, n_pages=2000))), [1], 90_000)
next(stream)
print("bye")
"""
    environment = child_environment({"PYTHONPATH": os.pathsep.join(["src", "."])})
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, timeout=300, capture_output=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"bye\n", b"")


def test_work_between_steps_gives_its_result_or_raises() -> None:
    driver = Driver(Engine(FakeModel()))
    threads: list[str] = []

    def work() -> int:
        threads.append(threading.current_thread().name)
        return 7

    def fail() -> int:
        raise KernelError("not now")

    assert driver.do(work) == 7
    assert threads == ["satchel"]
    with pytest.raises(KernelError, match="not now"):
        driver.do(fail)
    driver.close()
    with pytest.raises(CancelledError):
        driver.do(work)
