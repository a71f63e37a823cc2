"""docs/adding-a-format.md says the truth: its format decodes, multiplies, embeds and packs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import weights
from gguf import GGMLQuantizationType, quants
from harness import Call, here, run
from test_matmul import Product, tokens

from satchel import formats
from satchel.formats.packed import PACKED
from satchel.kernels import blocks
from satchel.kernels.embed import embed
from satchel.kernels.pack import pack
from satchel.lang.target import TARGETS

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-format.md"
NAME = "TQ2_0"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page's code defines, entered where the page says."""
    names: dict[str, Any] = {"__name__": "page"}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, PAGE.name, "exec"), names)
    monkeypatch.setitem(formats.__dict__["_BY_NAME"], NAME, names[NAME])
    monkeypatch.setitem(PACKED, NAME, names["layout"])
    monkeypatch.setattr(blocks, "_eighth", names["read_ternary"])
    monkeypatch.setattr(weights, "QUANTIZED", (*weights.QUANTIZED, NAME))
    monkeypatch.setattr("test_matmul.QUANTIZED", (*weights.QUANTIZED, NAME))
    return names


@pytest.mark.parametrize("target", here()[-1:])
def test_the_pages_format_works(page: dict[str, Any], target: str) -> None:
    raw = weights.random_blocks(NAME, 21, 512, np.random.default_rng(0))
    want = page[NAME].decode(raw)
    assert np.array_equal(want, quants.dequantize(raw, GGMLQuantizationType.TQ2_0))

    made, x = Product(target, NAME, raw, PACKED[NAME].pack(raw)), tokens(5)
    made.check(made(x), x)

    y = np.zeros((21, 512), np.float32)
    args = {
        "y": y, "table": raw, "tokens": np.arange(21, dtype=np.int32), "n": 512, "y_stride": 512,
        "by": 1.0,
    }  # fmt: skip
    run([Call(embed.build(TARGETS[target], format=NAME), args, 21)])
    assert np.array_equal(y, want)

    packed = np.zeros_like(made.packed[:1])
    args = {"out": packed, "x": raw, "n_blocks": 2, "tile_stride": packed.nbytes}
    run([Call(pack.build(TARGETS[target], format=NAME), args, 1)])
    assert np.array_equal(packed, made.packed[:1])
