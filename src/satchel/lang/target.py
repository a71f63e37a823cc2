"""What code is generated for: a triple, a CPU's features, and the levels that we test."""

from __future__ import annotations

import platform
from collections.abc import Collection
from dataclasses import dataclass

from satchel.base.errors import OptionError


@dataclass(frozen=True)
class Target:
    """A level of an ISA. `features` are LLVM's names for them, and the words that rules ask for.

    `triple` holds where the code is for another machine than this; `registers`: vector registers,
    of `bits` each; `abi`, `reloc`, `codemodel`: LLVM's words, for what the triple leaves open.
    """

    name: str
    triple: str
    cpu: str
    features: frozenset[str]
    bits: int
    registers: int
    abi: str = ""
    reloc: str = "pic"
    codemodel: str = "small"

    @property
    def isa(self) -> str:
        return self.name.partition("-")[0]

    @property
    def is_host(self) -> bool:
        """Whether this machine's processor is of the ISA (perhaps without all the features)."""
        return self.isa == isa_named(host_isa())

    @property
    def signed_codes(self) -> bool:
        """Whether codes of eight bits are best stored signed: all but VNNI, whose one instruction
        wants them unsigned, multiply signed bytes by signed as cheaply or more so (dot4_signed).
        """
        return self.features.isdisjoint({"avxvnni", "avx512vnni"})

    @property
    def adds_words(self) -> bool:
        """Whether dot_quads adds products in words here: where no one instruction makes a dot4."""
        words, dots = {"ssse3", "neon"}, {"avxvnni", "avx512vnni", "dotprod"}
        return not self.features.isdisjoint(words) and self.features.isdisjoint(dots)

    @property
    def llvm_features(self) -> str:
        return ",".join(f"+{f}" for f in sorted(self.features))


def _x86(name: str, bits: int, registers: int, *features: str) -> Target:
    return Target(name, "x86_64-linux-gnu", "x86-64", frozenset(features), bits, registers)


_SSE41 = ("sse3", "ssse3", "sse4.1")
_AVX2 = (*_SSE41, "sse4.2", "popcnt", "avx", "avx2", "fma", "f16c", "bmi", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512cd", "avx512vnni")

TARGETS = {
    t.name: t
    for t in (
        _x86("x86-base", 128, 16),
        _x86("x86-sse4.1", 128, 16, *_SSE41),
        _x86("x86-avx2", 256, 16, *_AVX2),
        _x86("x86-avxvnni", 256, 16, *_AVX2, "avxvnni"),
        _x86("x86-avx512vnni", 512, 32, *_AVX512),
        Target("arm-neon", "aarch64-linux-gnu", "generic", frozenset({"neon"}), 128, 32),
        Target(
            "arm-dotprod", "aarch64-linux-gnu", "generic", frozenset({"neon", "dotprod"}), 128, 32
        ),
        Target(
            "arm-i8mm",
            "aarch64-linux-gnu",
            "generic",
            frozenset({"neon", "dotprod", "i8mm"}),
            128,
            32,
        ),
        Target(
            "riscv-v",
            "riscv64-linux-gnu",
            "generic-rv64",
            frozenset({"m", "a", "f", "d", "c", "v", "zvl256b"}),
            256,
            32,
            abi="lp64d",
            codemodel="medium",
        ),
        Target(
            "wasm-simd",
            "wasm32-unknown-unknown",
            "generic",
            frozenset({"simd128"}),
            128,
            16,
            reloc="static",
        ),
    )
}
"""From the least to the most, an ISA at a time."""

_ISA = {"x86_64": "x86", "amd64": "x86", "aarch64": "arm", "arm64": "arm", "riscv64": "riscv"}


def isa_named(machine: str) -> str:
    """Our word for an ISA, from the operating system's: "AMD64" is x86."""
    return _ISA.get(machine.lower(), machine)


def choose_target(isa: str, features: Collection[str]) -> Target:
    """The best level that a CPU with these features (LLVM's names) runs; "x86-base" and "arm-neon"
    always run.

    Raises OptionError where no level fits the ISA.
    """
    have = set(features) | {"neon"}
    fit = [t for t in TARGETS.values() if t.isa == isa_named(isa) and t.features <= have]
    if not fit:
        words = ", ".join(sorted(features)) or "none"
        raise OptionError(f"there are no kernels for a {isa} CPU with features {words}")
    return fit[-1]


def target_named(name: str) -> Target:
    """A level by its name. Raises OptionError, listing the names."""
    if name not in TARGETS:
        raise OptionError(f"no target is called {name!r}; there are {', '.join(TARGETS)}")
    return TARGETS[name]


def host_isa() -> str:
    return platform.machine()
