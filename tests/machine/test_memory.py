"""What Linux tells about memory, by made-up files; and about this process."""

from __future__ import annotations

import os
import select
import socket
import sys
from pathlib import Path

import numpy as np
import pytest

from satchel.machine.memory import (
    Pressure,
    Watch,
    read_pressure,
    resident_bytes,
    watch_pressure,
)

PSI = "some avg10={:.2f} avg60=0.00 avg300=0.00 total=9\nfull avg10=0.00 avg60=0.00 total=1\n"


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_the_machines_own_pressure(tmp_path: Path) -> None:
    write(tmp_path, "proc/pressure/memory", PSI.format(12.5))
    write(tmp_path, "proc/meminfo", "MemTotal:  100 kB\nMemAvailable:     48 kB\n")
    assert read_pressure(tmp_path) == Pressure(0.125, 48 * 1024)


def test_the_shortest_of_nested_groups_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/pressure/memory", PSI.format(1))
    write(tmp_path, "proc/meminfo", "MemAvailable: 4096 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/a/b\n")
    groups = "sys/fs/cgroup"
    write(tmp_path, f"{groups}/a/b/memory.max", "max\n")
    write(tmp_path, f"{groups}/a/b/memory.current", "700000\n")
    write(tmp_path, f"{groups}/a/b/memory.pressure", PSI.format(30))
    write(tmp_path, f"{groups}/a/memory.max", "1000000\n")
    write(tmp_path, f"{groups}/a/memory.current", "900000\n")
    write(tmp_path, f"{groups}/a/memory.stat", "anon 5\ninactive_file 40000\n")
    assert read_pressure(tmp_path) == Pressure(0.3, 140000)


def test_a_group_beyond_its_limit_has_no_room(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/\n")
    write(tmp_path, "sys/fs/cgroup/memory.max", "10\n")
    write(tmp_path, "sys/fs/cgroup/memory.current", "12\n")
    assert read_pressure(tmp_path).available_bytes == 0


def test_where_nothing_is_told(tmp_path: Path) -> None:
    assert read_pressure(tmp_path) == Pressure()


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    def test_this_process() -> None:
        before = resident_bytes()
        assert before
        assert before > 1 << 20
        kept = np.ones(64 << 20, np.uint8)
        after = resident_bytes()
        assert after
        assert after - before == pytest.approx(kept.nbytes, rel=0.2)


def test_a_trigger_that_the_system_does_not_offer(tmp_path: Path) -> None:
    assert watch_pressure(tmp_path) is None


if sys.platform == "linux":  # elsewhere the system tells, or limits, less

    def test_a_watch_is_readable_when_something_is_urgent() -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            watch = Watch(os.dup(ours.fileno()))
            assert not select.select([watch], [], [], 0)[0]
            listener = socket.create_server(("127.0.0.1", 0))
            with listener, socket.create_connection(listener.getsockname()) as sender:
                receiver, _ = listener.accept()
                with receiver:
                    urgent = Watch(os.dup(receiver.fileno()))
                    sender.send(b"!", socket.MSG_OOB)  # what EPOLLPRI tells of a socket
                    assert select.select([urgent], [], [], 5)[0]
                    urgent.clear()
                    urgent.close()
            watch.close()
