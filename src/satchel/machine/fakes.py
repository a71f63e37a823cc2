"""Machines that no one here has, to test what depends on the machine."""

from __future__ import annotations

from satchel.machine.machine import Cache, Core, Machine

_AVX2 = frozenset(
    [
        "sse",
        "sse2",
        "sse3",
        "ssse3",
        "sse4.1",
        "sse4.2",
        "popcnt",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "bmi",
        "bmi2",
        "lzcnt",
    ]
)
_AVX512 = _AVX2 | frozenset(
    ["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vnni"]
)
_NEON = frozenset(["neon", "fp-armv8", "dotprod", "fullfp16", "lse", "crc"])


def _all_cpus(cores: tuple[Core, ...]) -> frozenset[int]:
    return frozenset(cpu for core in cores for cpu in core.cpus)


_P_CORES = tuple(Core((2 * i, 2 * i + 1), 1024) for i in range(6))
_E_CORES = tuple(Core((12 + i,), 390) for i in range(8))
HYBRID_LAPTOP = Machine(
    isa="x86_64",
    system="linux",
    name="a laptop of 6 performance and 8 efficient cores",
    cores=_P_CORES + _E_CORES,
    allowed=_all_cpus(_P_CORES + _E_CORES),
    quota=None,
    caches=(Cache(1, 48 << 10, 2), Cache(2, 2 << 20, 2), Cache(3, 24 << 20, 20)),
    memory_bytes=16 << 30,
    page_bytes=4096,
    given_features=_AVX2 | {"avxvnni"},
    given_cpu="alderlake",
)

_BIG_LITTLE = (*(Core((i,), 414) for i in range(4)), *(Core((4 + i,), 1024) for i in range(4)))
SMALL_BOARD = Machine(
    isa="aarch64",
    system="linux",
    name="a board of 4 small and 4 big cores",
    cores=_BIG_LITTLE,
    allowed=_all_cpus(_BIG_LITTLE),
    quota=None,
    caches=(Cache(1, 64 << 10), Cache(2, 512 << 10), Cache(3, 3 << 20, 8)),
    memory_bytes=8 << 30,
    page_bytes=4096,
    given_features=_NEON,
    given_cpu="cortex-a76",
)

_SERVER_CORES = tuple(Core((i, 64 + i), 1024, node=i // 32) for i in range(64))
TWO_SOCKETS = Machine(
    isa="x86_64",
    system="linux",
    name="a server of two sockets with 32 cores each",
    cores=_SERVER_CORES,
    allowed=_all_cpus(_SERVER_CORES),
    quota=None,
    caches=(Cache(1, 48 << 10, 2), Cache(2, 2 << 20, 2), Cache(3, 60 << 20, 64)),
    memory_bytes=512 << 30,
    page_bytes=4096,
    given_features=_AVX512 | {"avx512bf16"},
    given_cpu="sapphirerapids",
)
