"""The filters that most answers use, on a few plain numbers.

What engine/filters.py says by arrays, said once more: after each run of the model the processor's
caches hold its weights and none of our code, and so short a piece of it as this is back soonest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import exp

from satchel.engine.params import SamplingParams


def is_plain(params: SamplingParams) -> bool:
    """Whether top-p, min-p and a temperature are all that a draw from the likeliest takes."""
    others = params.dynatemp_range or params.xtc_probability or params.mirostat
    return params.temperature > 0 and params.typical_p == 1 and not others


def draw_few(logits: Sequence[float], params: SamplingParams, random: int) -> int:
    """Which of the likeliest tokens 64 random bits choose, given their logits, the greatest first.

    The same as sampler.draw chooses of what the filters leave.
    """
    highest, least, temperature = logits[0], params.min_p, params.temperature
    total = 0.0
    sums: list[float] = []  # of those that weigh enough
    for x in logits:
        weight = exp(x - highest)
        total += weight
        if weight >= least:
            sums.append(total)
    n = len(sums)
    if params.top_p < 1:
        n = 1 + bisect_left(sums, params.top_p * total, 0, n - 1)
    total = 0.0
    sums.clear()
    for x in logits[:n]:
        total += exp((x - highest) / temperature)
        sums.append(total)
    point = (random >> 11) * 2.0**-53 * total
    return min(bisect_right(sums, point), bisect_left(sums, total))
