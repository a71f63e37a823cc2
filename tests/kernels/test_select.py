"""Maxima of strips and the greatest of a row, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Arg, call, everywhere, here
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from satchel.kernels.select import RUN, argmax, strip_maxima
from satchel.runtime.batch import STRIP

Floats = NDArray[np.float32]
ODD = [np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45]
WIDTHS = (1, 15, 63, 64, 65, 640, STRIP * RUN, STRIP * RUN + 1, 2 * STRIP * RUN + 700)
on_every_target = pytest.mark.parametrize(
    "target",
    [pytest.param(t, marks=[] if t in here() else pytest.mark.slow) for t in everywhere()],
)


def rows_of(n: int, seed: int) -> Floats:
    """Rows with many equals: none odd, all of them odd, one NaN, all -inf; what is past n is huge
    or NaN."""
    rng = np.random.default_rng(seed)
    x = np.full((5, n + 33), 3e38, np.float32)
    x[:, n : n + 5] = np.nan
    x[:, :n] = rng.integers(-9, 9, (5, n)) / 2
    x[1, :n] = rng.choice(np.array(ODD, np.float32), n)
    x[2, rng.integers(n)] = np.nan
    x[3, :n] = -np.inf
    x[4, rng.integers(n)] = np.inf
    return x


def found(x: Floats, n: int, target: str) -> tuple[Floats, NDArray[np.int32]]:
    """The maxima and the ids, as the kernels find them."""
    n_strips = -(-n // STRIP)
    maxima = np.full((len(x) + 1, n_strips), 7.5, np.float32)
    args: dict[str, Arg] = {
        "maxima": maxima, "x": x, "n": n, "x_stride": x.shape[1], "n_strips": n_strips
    }  # fmt: skip
    call(strip_maxima, target, len(x) * -(-n_strips // RUN), args, strip=STRIP)
    assert (maxima[-1] == 7.5).all()
    ids = np.full(len(x) + 1, -7, np.int32)
    call(argmax, target, len(x), {**args, "ids": ids}, strip=STRIP)
    assert ids[-1] == -7
    return maxima[:-1], ids[:-1]


def check(x: Floats, n: int, target: str) -> None:
    maxima, ids = found(x, n, target)
    for row, tops, best in zip(x[:, :n], maxima, ids, strict=True):
        want = [row[i : i + STRIP].max() for i in range(0, n, STRIP)]
        np.testing.assert_array_equal(tops, np.array(want))
        assert best == (-1 if np.isnan(row).any() else row.argmax())


@on_every_target
def test_rows(target: str) -> None:
    for seed, n in enumerate(WIDTHS):
        check(rows_of(n, seed), n, target)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 300), st.integers(0, 2**32), st.data())
def test_a_nan_is_seen_wherever_it_stands(n: int, seed: int, data: st.DataObject) -> None:
    x = np.random.default_rng(seed).standard_normal((1, n)).astype(np.float32)
    for odd in data.draw(st.lists(st.sampled_from(ODD), max_size=4)):
        x[0, data.draw(st.integers(0, n - 1))] = odd
    check(x, n, here()[-1])
