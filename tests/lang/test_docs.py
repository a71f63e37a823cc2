"""The worked example of docs/adding-an-instruction.md does what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np

from satchel.lang.kernel import kernel
from satchel.lang.lower import lower
from satchel.lang.ops import OPS
from satchel.lang.print.python import Pointer, python_function
from satchel.lang.target import TARGETS
from satchel.lang.trace import In, Out, size

DOCS = Path(__file__).parents[2] / "docs"


def code(page: str) -> str:
    text = (DOCS / page).read_text(encoding="utf-8")
    return "\n".join(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


def test_the_example_is_an_op_with_a_rule() -> None:
    scope: dict[str, object] = {}
    try:
        exec(compile(code("adding-an-instruction.md"), "adding-an-instruction.md", "exec"), scope)
        mean_up = OPS["mean_up"]

        @kernel
        def means(lo: size, hi: size, y: Out.u8, a: In.u8, b: In.u8):
            y.store(mean_up(a.load(0, 32), b.load(0, 32)))

        build = means.build(TARGETS["x86-sse4.1"])
        assert str(build.lowered).count("llvm.x86.sse2.pavg.b") == 2
        assert "native" not in str(means.build(TARGETS["wasm-simd"]).lowered)

        a = np.resize(np.array([0, 1, 254, 255], np.uint8), 32)
        b = np.resize(np.array([0, 255, 255], np.uint8), 32)
        y = np.zeros(32, np.uint8)
        python_function(lower(build.traced, ()))([Pointer(y), Pointer(a), Pointer(b)], 0, 1)
        assert np.array_equal(y, (a.astype(int) + b + 1) // 2)
    finally:
        OPS.pop("mean_up", None)


def test_the_example_becomes_the_instruction() -> None:
    """In a child: the code may be foreign to this machine."""
    program = (
        code("adding-an-instruction.md")
        + """
from satchel.lang.kernel import kernel
from satchel.lang.target import TARGETS
from satchel.lang.trace import In, Out, size
@kernel
def means(lo: size, hi: size, y: Out.u8, a: In.u8, b: In.u8):
    y.store(mean_up(a.load(0, 32), b.load(0, 32)))
print(means.build(TARGETS["x86-sse4.1"]).assembly.count("pavgb"))
"""
    )
    program = program.replace("from __future__", "# from __future__")
    head = f"import sys; sys.path[:0] = {sys.path!r}\n"
    done = subprocess.run(
        [sys.executable, "-c", head + program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "2", done.stderr[-1000:]


def test_pages_are_two_screens() -> None:
    for page in ("kernels.md", "adding-an-instruction.md"):
        assert len((DOCS / page).read_text(encoding="utf-8").splitlines()) <= 100
