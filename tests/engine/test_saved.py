"""What was computed comes back from disk, after the process too, and no one can tell."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel
from tests.engine.test_prefix import WINDOWS, ask, cached, computed, expected

from satchel.engine.engine import Engine
from satchel.engine.terms import Terms
from satchel.files.page_files import PageFolder
from satchel.runtime.batch import PAGE

LIMIT = 1 << 20


def engine_on(
    folder: Path, windows: Sequence[int | None] = (None,), limit: int = LIMIT, **sizes: int
) -> Engine:
    """An engine to which all texts are worth writing, and reading."""
    engine = Engine(FakeModel(windows=windows, **sizes), PageFolder(folder / "kv", limit))
    engine.scheduler.pace.note = lambda *_: None  # type: ignore[method-assign]
    engine.upkeep.least_pages = 1
    return engine


def rest(engine: Engine) -> None:
    """Time passes, and the engine does what has waited."""
    engine.upkeep.tend(float("inf"), LIMIT)
    assert engine.due_s is None


@pytest.mark.parametrize("windows", WINDOWS)
def test_after_a_restart_full_pages_are_not_computed_again(
    tmp_path: Path, windows: tuple[int | None, ...]
) -> None:
    engine = engine_on(tmp_path, windows)
    prompt = list(range(200))
    assert ask(engine, prompt) == 0
    rest(engine)
    later = engine_on(tmp_path, windows)
    assert ask(later, prompt) == 192
    written, read = engine.usage().pages_written, later.usage().pages_read
    assert written >= read == later.saved.n_read > 0
    assert ask(later, [*prompt, *range(50)]) == 200


@given(
    lengths=st.lists(st.integers(1, 240), min_size=1, max_size=3),
    windows=st.sampled_from(WINDOWS),
    chunk=st.integers(1, 70),
)
@settings(max_examples=20, deadline=None)
def test_conversations_go_on_whatever_their_lengths(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    windows: tuple[int | None, ...],
    chunk: int,
) -> None:
    folder = tmp_path_factory.mktemp("saved")
    for length in sorted(lengths):
        engine = engine_on(folder, windows, max_batch=chunk, n_pages=24)
        ask(engine, list(range(length)))
        rest(engine)


def test_nothing_is_written_before_a_text_has_rested(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    ask(engine, range(100))
    assert engine.due_s is not None
    engine.upkeep.tend(0.0, LIMIT)
    assert not (tmp_path / "kv").exists()
    rest(engine)
    assert len(list((tmp_path / "kv").iterdir())) == 1


def test_short_texts_are_not_written(tmp_path: Path) -> None:
    engine = Engine(FakeModel(context_length=512), PageFolder(tmp_path / "kv", LIMIT))
    ask(engine, range(190))
    assert engine.due_s is None
    engine.spill_idle(100)
    assert not (tmp_path / "kv").exists()
    ask(engine, range(260))
    rest(engine)
    assert len(list((tmp_path / "kv").iterdir())) == 4


def test_beside_answers_little_is_written_at_a_time(tmp_path: Path) -> None:
    engine = engine_on(tmp_path, n_pages=64, context_length=1024)
    for n in range(3):
        ask(engine, [n, *range(250)], 1)
    now_s = time.perf_counter() + 10
    upkeep = engine.upkeep
    upkeep.tend_beside(now_s)
    assert upkeep.due_s is None, "they are few bytes"
    busy_until = upkeep._free_s
    assert busy_until > now_s
    ask(engine, [9, *range(250)], 1)
    upkeep.tend_beside(busy_until - 1e-6)
    assert upkeep.due_s is not None
    upkeep.tend_beside(busy_until + 10)
    assert upkeep.due_s is None


def test_the_ends_of_texts_are_deleted_before_their_beginnings(tmp_path: Path) -> None:
    record = 512 + 56
    engine = engine_on(tmp_path, limit=5 * record)
    for n in range(2):
        ask(engine, [n, *range(240)])
        rest(engine)
    later = engine_on(tmp_path, limit=5 * record)
    assert ask(later, [1, *range(240)]) == 192
    assert ask(later, [0, *range(240)]) == 64


def test_what_is_shared_is_written_once(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    for end in range(3):
        ask(engine, [*range(128), end])
    rest(engine)
    assert len(list((tmp_path / "kv").iterdir())) == 2


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    ask(engine, range(200))
    rest(engine)
    model = FakeModel()
    model.fingerprint = "another"
    other = Engine(model, PageFolder(tmp_path / "kv", LIMIT))
    assert ask(other, range(200)) == 0


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_damaged_page_costs_time_and_no_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: int
) -> None:
    engine = engine_on(tmp_path)
    ask(engine, range(200))
    rest(engine)
    key = engine.saved.keys(list(range(200)), 200)[place]
    path = tmp_path / "kv" / f"{key.hex()}-0.kv"
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)
    later = engine_on(tmp_path)
    assert ask(later, range(200)) == 0
    assert "damaged" in capsys.readouterr().err
    assert not path.exists()
    assert later.usage().pages_in_use == 0


def test_what_memory_has_no_room_for_comes_back_from_disk(tmp_path: Path) -> None:
    engine = engine_on(tmp_path, context_length=256, n_pages=5)
    model = engine.model
    first, second = list(range(250)), list(range(250, 0, -1))
    assert [ask(engine, prompt) for prompt in (first, second)] == [0, 0]
    before = computed(model)
    assert ask(engine, first) >= 192
    assert computed(model) - before <= 250 - 192 + 4


def test_a_request_that_gave_way_goes_on_from_disk(tmp_path: Path) -> None:
    engine = engine_on(tmp_path, n_pages=4, max_batch=64)
    model = engine.model
    low = Ask(engine, list(range(200)), 50, terms=Terms(priority=-1))
    engine.submit(low)
    for _ in range(20):
        for delta in engine.step():
            delta.request.deliver(delta)
    high = Ask(engine, list(range(200, 0, -1)), 5)
    engine.submit(high)
    run(engine)
    assert low.answer == expected(range(200), 50)
    assert high.answer == expected(range(200, 0, -1), 5)
    assert computed(model) <= 200 + 50 + 200 + 5 + PAGE, "no full page is computed twice"
    assert cached(low) == 0, "what it had computed itself does not count"


def test_pages_are_written_when_that_is_worth_it_only(tmp_path: Path) -> None:
    engine = engine_on(tmp_path, n_pages=5)
    engine.saved.write_s = engine.saved.read_s = 1.0  # seconds for a byte: a very slow disk
    engine.scheduler.pace.token_s = 0.001
    first, second = list(range(250)), list(range(250, 0, -1))
    for prompt in (first, second):
        ask(engine, prompt)
    assert not (tmp_path / "kv").exists()
    rest(engine)
    assert (tmp_path / "kv").exists(), "what shall outlive the process is written anyhow"
    assert ask(engine, first) < 192, "and read only when that is worth it"


def test_idle_texts_are_spilled_when_asked_to(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    ask(engine, range(200))
    kept = engine.usage().pages_kept
    assert engine.spill_idle(2) == 2
    assert engine.usage().pages_kept == kept - 2
    assert engine.spill_idle(100) == kept - 2
    assert ask(engine, range(200)) == 192


def test_a_cancelled_request_gives_back_what_has_come(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    ask(engine, range(250))
    rest(engine)
    later = engine_on(tmp_path)
    request = Ask(later, range(250))
    later.submit(request)
    later.scheduler.bite_bytes = 600  # a page and a bit
    later.step()
    later.scheduler.check()
    assert later.usage().pages_in_use == 2
    request.cancel()
    run(later)
    assert request.reason == "cancelled"
    assert later.usage().pages_in_use == 0


def test_reading_goes_on_beside_answers(tmp_path: Path) -> None:
    engine = engine_on(tmp_path)
    ask(engine, range(250))
    rest(engine)
    later = engine_on(tmp_path)
    later.scheduler.bite_bytes = 1
    talking, returning = Ask(later, [7], 30), Ask(later, range(250), 3)
    for request in (talking, returning):
        later.submit(request)
    for n in range(3):
        for delta in later.step():
            delta.request.deliver(delta)
        later.scheduler.check()
        assert (len(talking.answer), len(returning.answer)) == (n + 1, 0)
    run(later)
    assert cached(returning) == 192
    assert talking.answer == expected([7], 30)
    assert returning.answer == expected(range(250), 3)


class Restarts(RuleBasedStateMachine):
    """Processes come and go, the disk is small and gets damaged; answers are right."""

    @initialize(
        windows=st.sampled_from(WINDOWS), n_pages=st.integers(9, 16), limit=st.integers(0, 12)
    )
    def start(self, windows: tuple[int | None, ...], n_pages: int, limit: int) -> None:
        import tempfile

        self.windows, self.n_pages, self.limit = windows, n_pages, limit * 568
        self.folder = Path(tempfile.mkdtemp())
        self.open()

    def open(self) -> None:
        self.engine = engine_on(self.folder, self.windows, self.limit, n_pages=self.n_pages)
        self.engine.scheduler.bite_bytes = 600
        self.asks: list[Ask] = []

    @rule(
        which=st.integers(0, 2),
        length=st.integers(1, 240),
        n=st.integers(0, 15),
        priority=st.integers(0, 1),
    )
    def submit(self, which: int, length: int, n: int, priority: int) -> None:
        prompt = [which, *range(length)]
        request = Ask(self.engine, prompt, n, terms=Terms(priority))
        self.engine.submit(request)
        self.asks.append(request)

    @rule(n=st.integers(1, 20))
    def step(self, n: int) -> None:
        for _ in range(n):
            for delta in self.engine.step():
                delta.request.deliver(delta)
            self.engine.scheduler.check()

    @rule()
    def rest(self) -> None:
        self.engine.upkeep.tend(float("inf"), LIMIT)

    @rule(n=st.integers(1, 4))
    def spill(self, n: int) -> None:
        self.engine.spill_idle(n)
        self.engine.scheduler.check()

    @rule()
    def kill_and_restart(self) -> None:
        self.open()

    @rule(data=st.data())
    def damage(self, data: st.DataObject) -> None:
        files = sorted((self.folder / "kv").glob("*.kv"))
        if files:
            path = data.draw(st.sampled_from(files))
            path.write_bytes(path.read_bytes()[:-1] + b"?")

    @invariant()
    def answers_are_right(self) -> None:
        for one in [one for one in self.asks if one.deltas and one.deltas[-1].is_last]:
            self.asks.remove(one)
            assert one.answer == expected(list(one.prompt), one.max_tokens, self.windows)

    def teardown(self) -> None:
        if hasattr(self, "engine"):
            run(self.engine)
            self.answers_are_right()
            assert not self.asks
            assert self.engine.usage().pages_in_use == 0


Restarts.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestRestarts = pytest.mark.slow(Restarts.TestCase)
