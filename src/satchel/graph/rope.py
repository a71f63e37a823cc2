"""How fast each pair of a head turns with the position: plain, linear, llama-3 and YaRN."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Scaling:
    """How rotation is stretched past the context of training. The default stretches nothing.

    `scale` multiplies positions (one over GGUF's factor). With `ext_factor` above zero it is YaRN
    (https://arxiv.org/abs/2309.00071): pairs that turn more than `beta_fast` times within
    `orig_context` keep their speed, those that turn less than `beta_slow` times are scaled, those
    between are mixed, and the result grows by `attn_factor * (1 + ln(1 / scale) / 10)`.
    """

    scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    orig_context: int = 0

    @property
    def magnitude(self) -> float:
        """What sines and cosines are multiplied by."""
        if self.ext_factor == 0.0:
            return self.attn_factor
        return self.attn_factor * (1.0 + 0.1 * max(0.0, -math.log(self.scale)))


def frequencies(
    dims: int, theta: float, scaling: Scaling, factors: NDArray[np.floating] | None = None
) -> NDArray[np.float64]:
    """Radians a position, float64 [dims / 2]: one a pair; `factors` (llama-3's) divide them."""
    pair = np.arange(dims // 2, dtype=np.float64)
    plain = theta ** (-2.0 * pair / dims)
    if factors is not None:
        plain = plain / factors.astype(np.float64)
    if scaling.ext_factor == 0.0:
        return plain * scaling.scale

    def pair_that_turns(times: float) -> float:
        return dims * math.log(scaling.orig_context / (times * 2 * math.pi)) / (2 * math.log(theta))

    low = max(0, math.floor(pair_that_turns(scaling.beta_fast)))
    high = min(dims - 1, math.ceil(pair_that_turns(scaling.beta_slow)))
    slow = np.clip((pair - low) / max(0.001, high - low), 0.0, 1.0)
    keep = (1.0 - slow) * scaling.ext_factor
    return plain * (scaling.scale * (1.0 - keep) + keep)
