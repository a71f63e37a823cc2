"""Results kept, and later ones held against them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import CacheError, OptionError
from satchel.measure.baseline import (
    LEAST,
    SDS,
    baseline_path,
    compare,
    load_baseline,
    save_baseline,
    this_setting,
)
from satchel.measure.bench import Result

RESULT = Result(
    model="m", test="tg128", depth=0, threads=2, repetitions=5, tokens_per_s=100.0,
    tokens_per_s_sd=1.0, limit_tokens_per_s=125.0, limited_by="read", read_bytes_per_s=3e10,
    mads_per_s=4e11, target="t",
)  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SATCHEL_CACHE", str(tmp_path))
    return tmp_path


def verdict(before: Result, after: Result) -> str:
    return compare([before], [after])[0].verdict


def test_kept_results_come_back() -> None:
    setting = this_setting({"matmul": "abc"})
    path = save_baseline("night-1", [RESULT], setting)
    assert path == baseline_path("night-1")
    assert load_baseline("night-1") == ([RESULT], setting)
    assert setting.versions["python"]
    save_baseline("night-1", [replace(RESULT, tokens_per_s=7.0)], setting)
    assert load_baseline("night-1")[0][0].tokens_per_s == 7
    assert [file.name for file in path.parent.iterdir()] == ["night-1.json"]


@given(
    change=st.floats(0.5, 2),
    sds=st.tuples(st.floats(0, 5), st.floats(0, 5)),
)
def test_the_rule(change: float, sds: tuple[float, float]) -> None:
    """A difference counts beyond 3 standard deviations of both together, and beyond 2 %."""
    before = replace(RESULT, tokens_per_s_sd=sds[0])
    after = replace(RESULT, tokens_per_s=100 * change, tokens_per_s_sd=sds[1])
    noise = max(LEAST, SDS * ((sds[0] / 100) ** 2 + (sds[1] / (100 * change)) ** 2) ** 0.5)
    wanted = "slower" if change - 1 < -noise else "faster" if change - 1 > noise else "same"
    if abs(abs(change - 1) - noise) > 1e-6:
        assert verdict(before, after) == wanted


def test_a_slow_hour_of_the_machine_is_not_held_against_us() -> None:
    hour = replace(RESULT, tokens_per_s=60.0, limit_tokens_per_s=75.0)
    assert verdict(RESULT, hour) == "same"
    assert verdict(RESULT, replace(RESULT, tokens_per_s=60.0)) == "slower"
    assert verdict(hour, RESULT) == "same"


def test_what_has_changed_is_said() -> None:
    then = this_setting({"a": "1", "b": "2"})
    now = replace(then, machine="other", versions={**then.versions, "numpy": "0"})
    now = replace(now, kernels={"a": "1", "b": "3", "c": "4"})
    differences = then.differences(now)
    assert f"machine: {then.machine} -> other" in differences
    assert f"numpy: {then.versions['numpy']} -> 0" in differences
    assert "machine code: 2 of 3 kernels" in differences
    assert then.differences(then) == []


def test_what_does_not_work(cache: Path) -> None:
    with pytest.raises(OptionError, match="none was saved yet"):
        load_baseline("x")
    save_baseline("y", [RESULT], this_setting({}))
    with pytest.raises(OptionError, match="there are y"):
        load_baseline("x")
    with pytest.raises(OptionError, match="no pp512 of m by 2 threads; it has m, tg128"):
        compare([RESULT], [replace(RESULT, test="pp512")])
    for name in ("", "../x", "a/b", ".hidden", "a" * 200):
        with pytest.raises(OptionError, match="can't name a baseline"):
            baseline_path(name)
    for content in ("", "[]", "{", '{"schema": 1}', '{"schema": 1, "setting": {}, "results": 3}'):
        baseline_path("y").write_text(content)
        with pytest.raises(OptionError, match="damaged"):
            load_baseline("y")
    baseline_path("y").write_text('{"schema": 99}')
    with pytest.raises(OptionError, match="another version"):
        load_baseline("y")


def test_a_place_that_can_not_be_written(cache: Path) -> None:
    (cache / "baselines").write_text("")
    with pytest.raises(CacheError, match="can't be written"):
        save_baseline("x", [RESULT], this_setting({}))
