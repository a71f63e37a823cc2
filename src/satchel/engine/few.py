"""The filters that most answers use, on a few plain numbers.

What engine/filters.py says by arrays, said once more: after each run of the model the processor's
caches hold its weights and none of our code, and so short a piece of it as this is back soonest.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from math import exp

from satchel.engine.params import SamplingParams


def is_plain(params: SamplingParams) -> bool:
    """Whether top-p, min-p and a temperature are all that a draw from the likeliest takes."""
    others = params.dynatemp_range or params.xtc_probability or params.mirostat
    return params.temperature > 0 and params.typical_p == 1 and not others


def draw_few(logits: list[float], params: SamplingParams, random: int) -> int:
    """Which of the likeliest tokens 64 random bits choose, given their logits, the greatest first.

    The same as sampler.draw chooses of what the filters leave.
    """
    highest = logits[0]
    weights = [exp(x - highest) for x in logits]
    n = len(weights)
    if params.top_p < 1:
        sums = list(accumulate(weights))
        n = 1 + bisect_left(sums, params.top_p * sums[-1], 0, n - 1)
    while weights[n - 1] < params.min_p:
        n -= 1
    temperature = params.temperature
    sums = list(accumulate([exp((x - highest) / temperature) for x in logits[:n]]))
    total = sums[-1]
    point = (random >> 11) * 2.0**-53 * total
    return min(bisect_right(sums, point), bisect_left(sums, total))
