"""What this machine is, what others are, and what follows for threads."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from satchel.machine import Cache, Core, Machine, this_machine
from satchel.machine.fakes import HYBRID_LAPTOP, SMALL_BOARD, TWO_SOCKETS
from satchel.machine.linux import read_linux


def test_this_machine() -> None:
    machine = this_machine()
    assert machine is this_machine()
    assert machine.n_cpus >= 1
    assert machine.allowed == os.sched_getaffinity(0)
    assert 1 <= machine.default_threads <= machine.n_cpus
    assert machine.memory_bytes > 1 << 28
    assert machine.page_bytes == os.sysconf("SC_PAGE_SIZE")
    assert max(core.capacity for core in machine.cores) == 1024


def test_features_are_those_that_llvm_finds() -> None:
    machine = this_machine()
    llvm: Any = importlib.import_module("llvmlite.binding")
    found = {name for name, has in llvm.get_host_cpu_features().items() if has}
    assert machine.features <= found
    assert dataclasses.replace(machine, given_features=None).features == found
    for name in ("avx2", "fma", "f16c", "avx512f", "avx512vnni", "avxvnni", "dotprod", "i8mm"):
        assert (name in machine.features) == (name in found), name
    assert machine.cpu == llvm.get_host_cpu_name()


def test_it_is_quick_and_imports_little() -> None:
    source = (
        "import sys, time\n"
        "start = time.process_time()\n"
        "from satchel.machine import this_machine\n"
        "this_machine().features, this_machine().default_threads\n"
        "assert not {'llvmlite', 'numpy'} & set(sys.modules)\n"
        "print(time.process_time() - start)\n"
    )
    times: list[float] = []
    for _ in range(3):
        done = subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        times.append(float(done.stdout))
    assert min(times) < 0.1


@pytest.mark.parametrize(
    ("machine", "n_fast", "threads"),
    [(HYBRID_LAPTOP, 6, 6), (SMALL_BOARD, 4, 4), (TWO_SOCKETS, 64, 64)],
)
def test_threads_of_other_machines(machine: Machine, n_fast: int, threads: int) -> None:
    assert len(machine.fast_cores) == n_fast
    assert machine.default_threads == threads


def test_threads_under_limits() -> None:
    replace = dataclasses.replace
    assert replace(TWO_SOCKETS, quota=2.5).default_threads == 3
    assert replace(TWO_SOCKETS, quota=0.2).default_threads == 1
    assert replace(TWO_SOCKETS, allowed=frozenset({0, 64, 1})).default_threads == 2
    assert replace(HYBRID_LAPTOP, allowed=frozenset({12, 13, 14})).default_threads == 3
    assert replace(HYBRID_LAPTOP, allowed=frozenset()).default_threads == 1
    assert TWO_SOCKETS.n_nodes == 2
    assert (TWO_SOCKETS.n_cpus, HYBRID_LAPTOP.n_cpus) == (128, 20)
    assert SMALL_BOARD.cache_bytes(2) == 512 << 10
    assert SMALL_BOARD.cache_bytes(4) == 0


def tree(root: Path, files: dict[str, str]) -> Path:
    """A file system of these files."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


CPU = "sys/devices/system/cpu"


def test_a_board_from_its_files(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "Features\t: fp asimd asimddp atomics crc32\n\nprocessor: 1",
        "proc/meminfo": "MemTotal:        8000000 kB\nMemFree: 1 kB",
        "proc/device-tree/model": "A Board\0",
        f"{CPU}/online": "0-7",
        f"{CPU}/cpu4/cache/index0/level": "1",
        f"{CPU}/cpu4/cache/index0/type": "Data",
        f"{CPU}/cpu4/cache/index0/size": "64K",
        f"{CPU}/cpu4/cache/index0/shared_cpu_list": "4",
        f"{CPU}/cpu4/cache/index1/level": "1",
        f"{CPU}/cpu4/cache/index1/type": "Instruction",
        f"{CPU}/cpu4/cache/index1/size": "64K",
        f"{CPU}/cpu4/cache/index3/level": "3",
        f"{CPU}/cpu4/cache/index3/type": "Unified",
        f"{CPU}/cpu4/cache/index3/size": "3072K",
        f"{CPU}/cpu4/cache/index3/shared_cpu_list": "0-7",
    }
    for cpu in range(8):
        files[f"{CPU}/cpu{cpu}/cpu_capacity"] = "414" if cpu < 4 else "1024"
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = str(cpu)
    machine = read_linux("aarch64", tree(tmp_path, files))
    assert machine.name == "A Board"
    assert machine.default_threads == 4
    assert [core.cpus for core in machine.fast_cores] == [(4,), (5,), (6,), (7,)]
    assert machine.features == {"fp-armv8", "neon", "dotprod", "lse", "crc"}
    assert machine.caches == (Cache(1, 64 << 10, 1), Cache(3, 3 << 20, 8))
    assert machine.memory_bytes == 8_000_000 * 1024
    assert machine.quota is None


def test_a_hybrid_from_its_files(tmp_path: Path) -> None:
    """Efficient cores, whose clock alone would not make them slow; two threads on a fast core."""
    files = {
        "proc/cpuinfo": "model name\t: Hybrid\nflags\t\t: sse sse4_1 avx2 fma avx_vnni hypervisor",
        f"{CPU}/online": "0-5",
        "sys/devices/cpu_core/cpus": "0-3",
        "sys/devices/cpu_atom/cpus": "4,5",
    }
    for cpu in range(6):
        fast = cpu < 4
        files[f"{CPU}/cpu{cpu}/cpufreq/cpuinfo_max_freq"] = "5000000" if fast else "3900000"
        siblings = f"{cpu // 2 * 2}-{cpu // 2 * 2 + 1}" if fast else str(cpu)
        files[f"{CPU}/cpu{cpu}/topology/core_cpus_list"] = siblings
    machine = read_linux("x86_64", tree(tmp_path, files))
    assert machine.cores == (
        Core((0, 1), 1024),
        Core((2, 3), 1024),
        Core((4,), 399),
        Core((5,), 399),
    )
    assert machine.default_threads == 2
    assert machine.features == {"sse", "sse4.1", "avx2", "fma", "avxvnni"}


def test_two_nodes_from_their_files(tmp_path: Path) -> None:
    files = {
        f"{CPU}/online": "0-3",
        "sys/devices/system/node/node0/cpulist": "0,2",
        "sys/devices/system/node/node1/cpulist": "1,3",
    }
    machine = read_linux("x86_64", tree(tmp_path, files))
    assert [core.node for core in machine.cores] == [0, 1, 0, 1]
    assert machine.n_nodes == 2


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "max 100000"}, None),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/b/cpu.max": "150000 100000"}, 1.5),
        (
            {
                "proc/self/cgroup": "0::/a/b",
                "sys/fs/cgroup/a/b/cpu.max": "400000 100000",
                "sys/fs/cgroup/a/cpu.max": "200000 100000",
            },
            2.0,
        ),
        (
            {
                "proc/self/cgroup": "4:memory:/\n1:cpu,cpuacct:/x\n0::/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us": "50000",
                "sys/fs/cgroup/cpu/x/cpu.cfs_period_us": "100000",
            },
            0.5,
        ),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "nonsense"}, None),
    ],
)
def test_quotas(tmp_path: Path, files: dict[str, str], quota: float | None) -> None:
    assert read_linux("x86_64", tree(tmp_path, files)).quota == quota


def test_a_memory_limit(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 16000000 kB",
        "proc/self/cgroup": "0::/job",
        "sys/fs/cgroup/job/memory.max": str(2 << 30),
    }
    assert read_linux("x86_64", tree(tmp_path, files)).memory_bytes == 2 << 30


def test_riscv_from_its_files(tmp_path: Path) -> None:
    files = {"proc/cpuinfo": "processor\t: 0\nisa\t\t: rv64imafdcv_zicsr_zvl256b\nmmu\t: sv39"}
    machine = read_linux("riscv64", tree(tmp_path, files))
    assert machine.features == {"m", "a", "f", "d", "c", "v", "zicsr", "zvl256b"}


def test_without_any_file(tmp_path: Path) -> None:
    """Where a system hides all, the defaults are sound."""
    machine = read_linux("x86_64", tmp_path)
    assert machine.n_cpus == os.cpu_count()
    assert machine.default_threads >= 1
    assert machine.memory_bytes > 1 << 20
    assert machine.given_features is None  # so LLVM is asked
    (tmp_path / CPU).mkdir(parents=True)
    (tmp_path / CPU / "online").write_text("what-ever")
    assert read_linux("x86_64", tmp_path).n_cpus == os.cpu_count()
