"""Which instructions the rules come to, and how many: a small dot kernel and a kernel of halfs, on
every target.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from satchel.lang.target import TARGETS


@cache
def assembly() -> dict[str, dict[str, str]]:
    """Target -> kernel -> assembly; made in a child, since foreign code generation may end the
    process.
    """
    child = Path(__file__).parent / "counts_child.py"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(child)], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def mnemonics(text: str) -> Counter[str]:
    """Instructions of an assembly listing, by name."""
    return Counter(
        m[1] for m in re.finditer(r"^\s+(?:\{\w+\}\s+)?([a-z][\w.]+)", text, re.MULTILINE)
    )


# 64 bytes of weights are 16 dwords: one register of 512 bits, or four of 128.
DOT = {
    "x86-base": {"pmaddwd": 16, "pmaddubsw": 0},  # LLVM's own reading of the meaning
    "x86-sse4.1": {"pmaddwd": 8, "pmaddubsw": 0},
    "x86-avx2": {"vpmaddwd": 4, "vpmaddubsw": 0},
    "x86-avxvnni": {"vpdpbusd": 2},
    "x86-avx512vnni": {"vpdpbusd": 1},
    "arm-neon": {"saddlp": 8, "addp": 4, "sdot": 0},
    "arm-dotprod": {"sdot": 5, "usdot": 0},  # one for all: the sum of x, 128 times
    "arm-i8mm": {"usdot": 4},
    "riscv-v": {"vwmulsu.vv": 1},
    "wasm-simd": {"i32x4.dot_i16x8_s": 8},
}
DOT7 = {
    **DOT,
    "x86-sse4.1": {"pmaddubsw": 4, "pmaddwd": 4},
    "x86-avx2": {"vpmaddubsw": 2, "vpmaddwd": 2},
    "arm-dotprod": {"sdot": 4},
}
DOT_SIGNED = {
    **DOT7,
    "x86-base": {"pmullw": 8, "pmaddubsw": 0},
    "x86-sse4.1": {"pabsb": 4, "psignb": 4, "pmaddubsw": 4, "pmaddwd": 4},
    "x86-avx2": {"vpabsb": 2, "vpsignb": 2, "vpmaddubsw": 2, "vpmaddwd": 2},
    "x86-avxvnni": {"vpmaddubsw": 2, "vpdpbusd": 0},  # codes are stored unsigned there
    "x86-avx512vnni": {"vpmaddubsw": 2, "vpdpbusd": 0},
    "arm-i8mm": {"sdot": 4, "usdot": 0},
    "riscv-v": {"vwmul.vv": 1},
}
QUADS4 = {
    "x86-base": {"pmaddubsw": 0},
    "x86-sse4.1": {"pmaddubsw": 32, "paddw": 28, "pmaddwd": 4},
    "x86-avx2": {"vpmaddubsw": 16, "vpaddw": 14, "vpmaddwd": 2},
    "x86-avxvnni": {"vpdpbusd": 16, "vpmaddubsw": 0},
    "x86-avx512vnni": {"vpdpbusd": 8, "vpmaddubsw": 0},
    "arm-neon": {"smull": 8, "smlal": 56, "saddlp": 8, "addp": 4},
    "arm-dotprod": {"sdot": 32},
    "arm-i8mm": {"usdot": 32},
    "riscv-v": {"vwmulsu.vv": 8},
    "wasm-simd": {"i32x4.dot_i16x8_s": 64},
}
QUADS5 = {
    **QUADS4,
    "x86-sse4.1": {"pmaddubsw": 32, "paddw": 24, "pmaddwd": 8},
    "x86-avx2": {"vpmaddubsw": 16, "vpaddw": 12, "vpmaddwd": 4},
}
HALFS = {
    "x86-base": {"mulps": 8, "addps": 8},
    "x86-sse4.1": {"mulps": 8, "addps": 8},
    "x86-avx2": {"vcvtph2ps": 2, "vcvtps2ph": 2, "vfmadd231ps": 2},
    "x86-avxvnni": {"vcvtph2ps": 2, "vcvtps2ph": 2, "vfmadd231ps": 2},
    "x86-avx512vnni": {"vcvtph2ps": 1, "vcvtps2ph": 1, "vfmadd231ps": 1},
    "arm-neon": {"fcvtl": 2, "fcvtl2": 2, "fmla": 4, "fcvtn": 2, "fcvtn2": 2},
    "arm-dotprod": {"fmla": 4},
    "arm-i8mm": {"fmla": 4},
    "riscv-v": {"vfmadd.vv": 1},
    "wasm-simd": {"f32x4.mul": 8},
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("kernel", "wanted"),
    [
        ("dot", DOT),
        ("dot7", DOT7),
        ("dot_signed", DOT_SIGNED),
        ("quads4", QUADS4),
        ("quads5", QUADS5),
        ("halfs", HALFS),
    ],
)
def test_instructions(kernel: str, wanted: dict[str, dict[str, int]], target: str) -> None:
    found = mnemonics(assembly()[target][kernel])
    assert {name: found[name] for name in wanted[target]} == wanted[target]


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_call_nothing(target: str) -> None:
    """No library's function stands in for an instruction: objects link without any."""
    for text in assembly()[target].values():
        assert not set(mnemonics(text)) & {"call", "callq", "bl", "tail"}
