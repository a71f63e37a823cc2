"""How many of the instructions that matter the hottest kernels come to: a change shows in review.

`python tests/kernels/test_counts.py` writes the golden table anew.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "golden" / "counts.txt"
WORDS = {
    "dots": r"v?pdpbusd|pdpbusd|sdot|usdot|usmmla|smmla",
    "maddubs": r"v?pmaddubsw",
    "madds": r"v?pmaddwd|smlal2?|smull2?|saddlp|sadalp",
    "fmas": r"vfn?m(?:add|sub)\d*[ps]s|fmla|fmls|fmadd",
    "halfs": r"vcvtph2ps|fcvtl2?",
    "calls": r"callq?|bl|blr",
}
# A vector register put on the stack: the registers did not suffice.
SPILL = (
    r"^\s+(?:v?mov[au]p[sd]|v?movdq[au]\d*)\s+%[xyz]mm\d+, -?\d*\(%r[sb]p\)|^\s+st[rp]\s+q.*\[sp"
)


@cache
def counted() -> dict[str, dict[str, dict[str, int]]]:
    """Target -> kernel -> what is counted -> how often."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, str(HERE / "counts_child.py")],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    listings: dict[str, dict[str, str]] = json.loads(done.stdout)
    return {t: {k: counts(text) for k, text in each.items()} for t, each in listings.items()}


def counts(text: str) -> dict[str, int]:
    found = {
        name: len(re.findall(rf"^\s+(?:\{{\w+\}}\s+)?(?:{word})\b", text, re.MULTILINE))
        for name, word in WORDS.items()
    }
    return found | {"spills": len(re.findall(SPILL, text, re.MULTILINE))}


def table() -> str:
    """A line for each target and kernel; what there is none of is left out, but for spills."""
    lines = [
        f"{target:15} {kernel:17} "
        + " ".join(f"{name}={n}" for name, n in each.items() if n or name == "spills")
        for target, kernels in counted().items()
        for kernel, each in kernels.items()
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
def test_counts_are_golden() -> None:
    want = GOLDEN.read_text(encoding="utf-8").splitlines()
    assert table().splitlines() == want, f"if this is meant: python {Path(__file__).name}"


@pytest.mark.slow
def test_products_use_what_the_target_has() -> None:
    """And the gate's exponential is no call of a library: objects link without any."""
    for target, kernels in counted().items():
        for kernel, each in kernels.items():
            assert each["calls"] == 0, (target, kernel)
            if kernel.startswith("matmul Q"):
                has_dots = target not in ("x86-avx2", "arm-neon")
                assert bool(each["dots"]) == has_dots, (target, kernel)


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    GOLDEN.write_text(table(), encoding="utf-8")
