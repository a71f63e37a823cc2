"""python counts_child.py: the assembly of the hottest kernels on five targets, as JSON, in a
process of its own: what a foreign target can't do ends it.
"""

# ruff: noqa: A001 (`format` is our word for it)

from __future__ import annotations

import json
import sys
from typing import Any

from satchel.formats.packed import packed_for
from satchel.kernels.attention import attend, group_shape
from satchel.kernels.matmul import matmul, pass_shape
from satchel.kernels.quantize import norm_quantize, quantize
from satchel.lang.kernel import Kernel
from satchel.lang.target import TARGETS, Target
from satchel.machine.tiles import DEFAULT

NAMES = ("x86-avx2", "x86-avx512vnni", "arm-neon", "arm-dotprod", "arm-i8mm")


def layout_of(format: str, target: Target) -> str:
    return packed_for(format, target.signed_codes).name


def kernels(target: Target) -> dict[str, tuple[Kernel, dict[str, Any]]]:
    """Kernels and constants, by the name that the golden table has for them."""
    passes, heads = (
        pass_shape(target, 1, DEFAULT),
        group_shape(3, target.bits, target.registers, DEFAULT),
    )
    seen = {"n_kv": 3, "per_kv": 3, "head_dim": 64, "window": None, "softcap": None, **heads}
    found: dict[str, tuple[Kernel, dict[str, Any]]] = {
        f"matmul {format}": (matmul, {"format": layout_of(format, target), **passes})
        for format in ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K", "F16")
    }
    return found | {
        "matmul Q4_1 gate": (matmul, {"format": "Q4_1", "gate": "silu", **passes}),
        "attend": (attend, seen),
        "quantize": (quantize, {"widths": (8, 4, 2, 1)}),
        "norm_quantize": (norm_quantize, {"widths": (8, 4, 2, 1)}),
    }


if __name__ == "__main__":
    json.dump(
        {
            name: {
                k: f.build(TARGETS[name], **c).assembly
                for k, (f, c) in kernels(TARGETS[name]).items()
            }
            for name in NAMES
        },
        sys.stdout,
    )
