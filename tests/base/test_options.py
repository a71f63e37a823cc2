"""Options: from the environment, typed, and errors that name the variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from satchel.base.errors import OptionError
from satchel.base.options import count, options, switch, variable, variables

VARIABLES = ("CACHE", "THREADS", "TARGET", "OFFLINE", "LOG")


@pytest.fixture(autouse=True)
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in variables():
        monkeypatch.delenv(f"SATCHEL_{name}")
    for name in ("XDG_CACHE_HOME", "HF_HOME", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/nobody")


def test_defaults() -> None:
    found = options()
    assert found.cache_dir == Path("/home/nobody/.cache/satchel")
    assert found.hf_hub == Path("/home/nobody/.cache/huggingface/hub")
    assert (found.threads, found.target, found.offline, found.log) == (None, None, False, "warning")


def test_where_the_caches_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert options().cache_dir == Path("/x/satchel")
    assert options().hf_hub == Path("/x/huggingface/hub")
    monkeypatch.setenv("SATCHEL_CACHE", "~/s")
    monkeypatch.setenv("HF_HOME", "/h")
    assert options().cache_dir == Path("/home/nobody/s")
    assert options().hf_hub == Path("/h/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "/h2")
    assert options().hf_hub == Path("/h2")


def test_values(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("THREADS", "3"), ("TARGET", "t"), ("OFFLINE", "Yes"), ("LOG", "DEBUG")):
        monkeypatch.setenv(f"SATCHEL_{name}", value)
    found = options()
    assert (found.threads, found.target, found.offline, found.log) == (3, "t", True, "debug")
    assert variables() == ("LOG", "OFFLINE", "TARGET", "THREADS")


@pytest.mark.parametrize(
    ("name", "value"),
    [("THREADS", "0"), ("THREADS", "two"), ("THREADS", "-1"), ("THREADS", "²"), ("OFFLINE", "2"),
     ("LOG", "loud"), ("CACHE", __file__)],
)  # fmt: skip
def test_bad_values_name_their_variable(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(f"SATCHEL_{name}", value)
    with pytest.raises(OptionError, match=f"SATCHEL_{name}=") as failed:
        options()
    assert "\n" not in str(failed.value)


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SATCHEL_THREADS", "")
    assert variable("THREADS", count) is None


def test_switches() -> None:
    assert [switch(text) for text in ("1", "on", "0", "False")] == [True, True, False, False]


@pytest.mark.parametrize(
    ("text", "n"),
    [("0", 0), ("1000", 1000), ("2k", 2048), ("512MiB", 512 << 20), ("1.5G", 3 << 29)],
)
def test_sizes(monkeypatch: pytest.MonkeyPatch, text: str, n: int) -> None:
    monkeypatch.setenv("SATCHEL_PACKED_LIMIT", text)
    assert options().packed_limit == n


@pytest.mark.parametrize("text", ["-1", "1.G", "1e3", "G", "many", "B"])
def test_what_is_no_size(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("SATCHEL_PACKED_LIMIT", text)
    with pytest.raises(OptionError, match=r"SATCHEL_PACKED_LIMIT=.* is no number of bytes"):
        options()
