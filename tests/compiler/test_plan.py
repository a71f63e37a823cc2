"""The plan of a tiny model, as text: a change of passes, lowering or memory shows in review.

`python tests/compiler/test_plan.py` writes the golden texts anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.archs import tiny
from tests.compiler.models import LIMITS, write_tiny

from satchel.archs import trace
from satchel.compiler.pipeline import compile_graph, fuse
from satchel.compiler.weights import Matrix
from satchel.files.checkpoint import open_checkpoint
from satchel.lang.target import TARGETS, target_named
from satchel.runtime.plan import parse_plan

GOLDEN = Path(__file__).parent / "golden"
CASES = ("llama", "qwen2", "gemma3-capped")


def texts(case: str, folder: Path) -> str:
    """The first layer's fused graph, then all of the plan, for a target that is not the host's."""
    graph = trace(open_checkpoint(write_tiny(case, folder / "model.gguf", "Q8_0")))
    plan = compile_graph(graph, target_named("x86-avx2"), LIMITS).plan
    return f"{fuse(graph).text(0)}\n{plan}\n"


@pytest.mark.parametrize("case", CASES)
def test_plans_are_golden(case: str, tmp_path: Path) -> None:
    want = (GOLDEN / f"{case}.txt").read_text(encoding="utf-8").splitlines()
    assert texts(case, tmp_path).splitlines() == want


@pytest.mark.parametrize("case", tiny.MODELS)
def test_plans_read_back(case: str, tmp_path: Path) -> None:
    graph = trace(open_checkpoint(write_tiny(case, tmp_path / "model.gguf", "Q4_0")))
    plan = compile_graph(graph, target_named("x86-avx512vnni"), LIMITS).plan
    assert parse_plan(str(plan)) == plan


def test_eight_bits_are_packed_as_the_target_multiplies_them(tmp_path: Path) -> None:
    """Each recipe names its layout: so packed weights are found again where that is the same."""
    graph = trace(open_checkpoint(write_tiny("llama", tmp_path / "model.gguf", "Q8_0")))
    found: dict[str, set[str]] = {}
    for name, target in TARGETS.items():
        weights = compile_graph(graph, target, LIMITS).weights.values()
        found[name] = {w.format for w in weights if isinstance(w, Matrix)} - {"F32"}
    unsigned = {"x86-avxvnni", "x86-avx512vnni"}
    assert found == {n: {"Q8_0" if n in unsigned else "Q8_0_signed"} for n in TARGETS}


if __name__ == "__main__":
    from tempfile import TemporaryDirectory

    GOLDEN.mkdir(exist_ok=True)
    with TemporaryDirectory() as name:
        for each in CASES:
            (GOLDEN / f"{each}.txt").write_text(texts(each, Path(name)), encoding="utf-8")
