"""What Linux tells about the computer, in /proc and /sys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from satchel.machine.machine import Cache, Core, Machine

# Names of /proc/cpuinfo that LLVM spells otherwise, and those it spells the same.
_X86 = {
    "pni": "sse3",
    "sse4_1": "sse4.1",
    "sse4_2": "sse4.2",
    "bmi1": "bmi",
    "abm": "lzcnt",
    "avx512_vnni": "avx512vnni",
    "avx512_bf16": "avx512bf16",
    "avx512_fp16": "avx512fp16",
    "avx512_vbmi2": "avx512vbmi2",
    "avx512_bitalg": "avx512bitalg",
    "avx512_vpopcntdq": "avx512vpopcntdq",
    "avx_vnni": "avxvnni",
    "avx_vnni_int8": "avxvnniint8",
    "avx_ifma": "avxifma",
    "cx16": "cx16",
}
_X86_SAME = [
    "sse",
    "sse2",
    "ssse3",
    "popcnt",
    "movbe",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi2",
    "gfni",
    "vaes",
    "vpclmulqdq",
    "avx512f",
    "avx512bw",
    "avx512cd",
    "avx512dq",
    "avx512vl",
    "avx512ifma",
    "avx512vbmi",
]
_ARM = {
    "asimd": "neon",
    "fp": "fp-armv8",
    "asimddp": "dotprod",
    "asimdhp": "fullfp16",
    "asimdfhm": "fp16fml",
    "atomics": "lse",
    "i8mm": "i8mm",
    "bf16": "bf16",
    "sve": "sve",
    "sve2": "sve2",
    "crc32": "crc",
}
_NAMES = {"x86_64": {**_X86, **dict(zip(_X86_SAME, _X86_SAME, strict=True))}, "aarch64": _ARM}


def read_linux(isa: str, root: Path = Path("/"), allowed: frozenset[int] | None = None) -> Machine:
    """The machine that the files under `root` describe, with sound defaults for the rest."""
    info = _cpuinfo(root)
    cpus = _cpus(root / "sys/devices/system/cpu/online") or tuple(range(os.cpu_count() or 1))
    cores = _cores(root, cpus)
    fastest = max(cores, key=lambda core: core.capacity)
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    limits = [_number(path) for path in _cgroup(root, "memory.max", "memory.limit_in_bytes")]
    memory = int(re.sub(r"\D", "", _meminfo(root)) or 0) * 1024 or pages * page_bytes
    return Machine(
        isa=isa,
        system="linux",
        name=info.get("model name") or _text(root / "proc/device-tree/model").rstrip("\0") or isa,
        cores=cores,
        allowed=allowed if allowed is not None else frozenset(cpus),
        quota=_quota(root),
        caches=_caches(root, fastest.cpus[0]),
        memory_bytes=min([memory, *(limit for limit in limits if limit)]),
        page_bytes=page_bytes,
        given_features=_features(isa, info),
    )


def _features(isa: str, info: dict[str, str]) -> frozenset[str] | None:
    """LLVM's names of what the kernel lets programs use; None when it does not say."""
    if isa == "riscv64":
        found = re.match(r"rv64([a-z]+)", info.get("isa", ""))
        letters = found[1].replace("g", "imafd") if found else ""
        longer = [name for name in info.get("isa", "").split("_")[1:] if name]
        return frozenset([*letters.split("z")[0].replace("i", ""), *longer]) or None
    words = (info.get("flags") or info.get("Features") or "").split()
    names = _NAMES.get(isa, {})
    return frozenset(names[word] for word in words if word in names) or None


def _cores(root: Path, cpus: tuple[int, ...]) -> tuple[Core, ...]:
    """Logical CPUs, grouped into cores."""
    system = root / "sys/devices/system"
    slow = set(_cpus(root / "sys/devices/cpu_atom/cpus"))  # the efficient ones of a hybrid
    nodes = {
        cpu: int(path.name[4:])
        for path in sorted((system / "node").glob("node[0-9]*"))
        for cpu in _cpus(path / "cpulist")
    }
    found: dict[tuple[int, ...], int] = {}
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        folder = system / f"cpu/cpu{cpu}"
        siblings = _cpus(folder / "topology/core_cpus_list") or _cpus(
            folder / "topology/thread_siblings_list"
        )
        group = tuple(c for c in siblings if c in cpus) or (cpu,)
        seen.update(group)
        speed = _number(folder / "cpu_capacity")
        if not speed:
            speed = _number(folder / "cpufreq/cpuinfo_max_freq") or 1
            speed = speed // 2 if cpu in slow else speed  # they do less per cycle, too
        found[group] = speed
    fastest = max(found.values())
    return tuple(
        Core(group, 1024 * speed // fastest, nodes.get(group[0], 0))
        for group, speed in found.items()
    )


def _caches(root: Path, cpu: int) -> tuple[Cache, ...]:
    """The data caches that a CPU sees, nearest first."""
    found: list[Cache] = []
    for path in (root / f"sys/devices/system/cpu/cpu{cpu}/cache").glob("index*"):
        size = re.fullmatch(r"(\d+)([KMG]?)", _text(path / "size"))
        level = _number(path / "level")
        if size and level and _text(path / "type") != "Instruction":
            n_bytes = int(size[1]) << {"": 0, "K": 10, "M": 20, "G": 30}[size[2]]
            shared = len(_cpus(path / "shared_cpu_list")) or 1
            line = _number(path / "coherency_line_size") or 64
            found.append(Cache(level, n_bytes, shared, line))
    return tuple(sorted(found, key=lambda cache: cache.level))


def _quota(root: Path) -> float | None:
    """The CPU time per time that control groups allow, in CPUs; None for no limit."""
    quotas: list[float] = []
    for path in _cgroup(root, "cpu.max", "cpu.cfs_quota_us"):
        words = _text(path).split()
        if path.name == "cpu.cfs_quota_us":
            words.append(_text(path.with_name("cpu.cfs_period_us")))
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def _cgroup(root: Path, new: str, old: str) -> Iterator[Path]:
    """The files of a limit in this process's control groups, its own and those around it."""
    mount = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        kind = old.split(".")[0]
        if controllers and kind not in controllers.split(","):
            continue
        base, name = (mount / kind, old) if controllers else (mount, new)
        inner = base / path.lstrip("/")
        for folder in (inner, *inner.parents):
            if (folder / name).is_file():
                yield folder / name
            if folder == base:
                break


def _cpuinfo(root: Path) -> dict[str, str]:
    """The first processor's entry."""
    first = _text(root / "proc/cpuinfo").split("\n\n")[0]
    pairs = (line.partition(":") for line in first.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _meminfo(root: Path) -> str:
    return _text(root / "proc/meminfo").partition("\n")[0]


def _cpus(path: Path) -> tuple[int, ...]:
    """A list like "0-3,8" as numbers; empty when there is none."""
    cpus: list[int] = []
    for part in filter(None, _text(path).split(",")):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            return ()
        cpus += range(int(first), int(last or first) + 1)
    return tuple(cpus)


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdigit() else None


def _text(path: Path) -> str:
    """What is in a file, without the space around; nothing when it can't be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
