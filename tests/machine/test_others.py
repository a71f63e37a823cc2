"""Machines without Linux's files."""

from __future__ import annotations

import pytest

from satchel.machine import others
from satchel.machine.others import read_darwin, read_other


def test_what_python_knows() -> None:
    machine = read_other("x86_64", "freebsd14")
    assert machine.default_threads == machine.n_cpus >= 1
    assert machine.memory_bytes > 1 << 20
    assert machine.cache_bytes(1) == 0


NUMBERS = {
    "hw.nperflevels": 2,
    "hw.perflevel0.physicalcpu": 6,
    "hw.perflevel0.logicalcpu": 6,
    "hw.perflevel0.l1dcachesize": 131072,
    "hw.perflevel0.l2cachesize": 16777216,
    "hw.perflevel1.physicalcpu": 2,
    "hw.perflevel1.logicalcpu": 2,
    "hw.cachelinesize": 128,
    "hw.memsize": 17179869184,
}
OLDER = {"hw.physicalcpu": 4, "hw.logicalcpu": 8, "hw.l3cachesize": 8388608}


def test_a_mac_with_two_kinds_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "_sysctl", lambda name: NUMBERS.get(name, 0))
    monkeypatch.setattr(others, "_sysctl_text", lambda name: "A Chip")
    machine = read_darwin("aarch64")
    assert (machine.name, machine.n_cpus, machine.default_threads) == ("A Chip", 8, 6)
    assert [core.cpus for core in machine.cores] == [(i,) for i in range(8)]
    assert machine.cache_bytes(2) == 16 << 20
    assert machine.caches[0].line_bytes == 128
    assert machine.memory_bytes == 16 << 30


def test_an_older_mac(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(others, "_sysctl", lambda name: OLDER.get(name, 0))
    monkeypatch.setattr(others, "_sysctl_text", lambda name: "")
    machine = read_darwin("x86_64")
    assert (machine.name, machine.n_cpus, machine.default_threads) == ("x86_64", 8, 4)
    assert machine.cores[1].cpus == (2, 3)
    assert machine.cache_bytes(3) == 8 << 20
