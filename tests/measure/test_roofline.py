"""What the roofline is drawn from; the drawing itself needs matplotlib, which tests do without."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

LIMITS = {"memory_bytes_per_s": 30e9, "code_mads_per_s": 4e11, "float_mads_per_s": 1e11}
KERNEL = {"model": "m/tiny.gguf", "kind": "kernel", "test": "tg", "mads": 8, "share": 0.5}
LINES: list[dict[str, Any]] = [
    {"kind": "limits", **LIMITS},
    {"kind": "limits", **LIMITS, "memory_bytes_per_s": 35e9},
    {"kind": "step", "test": "tg"},
    KERNEL,
    {**KERNEL, "test": "pp512"},
    {**KERNEL, "share": 0.001},
    {**KERNEL, "mads": 0},
]


@pytest.fixture(scope="module")
def roofline() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "roofline.py"
    spec = importlib.util.spec_from_file_location("roofline", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_best_of_the_limits_are_the_roofs(roofline: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    lines = roofline.read([file])
    assert lines == LINES
    assert roofline.roofs(lines)["memory_bytes_per_s"] == 35
    assert roofline.roofs(lines)["code_mads_per_s"] == 400


def test_kernels_that_multiply_are_the_points(roofline: ModuleType) -> None:
    found = roofline.points(LINES)
    assert {series: len(kernels) for series, kernels in found.items()} == {
        "tiny, tg": 1,
        "tiny, pp512": 1,
    }


@pytest.mark.parametrize("content", ["{", '{"kind": "kernel"}'])
def test_no_profile(roofline: ModuleType, tmp_path: Path, content: str) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text(content)
    with pytest.raises(SystemExit, match="roofline: error: "):
        roofline.read([file])


def test_without_matplotlib(
    roofline: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("\n".join(map(json.dumps, LINES)))
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(sys, "argv", ["roofline.py", str(file)])
    with pytest.raises(SystemExit, match=r"pip install 'satchel\[plot\]'"):
        roofline.main()
