"""Maxima of strips and the greatest of a row, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from harness import Arg, call, everywhere, here
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from satchel.kernels.select import LANES, RUN, argmax, ranked, strip_maxima
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


def ranks(x: Floats, n: int, k: int, room: int, target: str) -> NDArray[np.int32]:
    """The ids of the k greatest of each row, as the kernel finds them."""
    maxima = np.stack([np.maximum.reduceat(row, range(0, n, STRIP)) for row in x[:, :n]])
    ids = np.full((len(x) + 1, k), -7, np.int32)
    greatest = np.zeros((len(x) + 1, k), np.float32)
    wide = (len(x), room + LANES)
    args: dict[str, Arg] = {
        "ids": ids, "greatest": greatest,
        "places": np.zeros(wide, np.int32), "values": np.zeros(wide, np.float32),
        "x": x, "maxima": maxima, "n": n, "x_stride": x.shape[1], "n_strips": maxima.shape[1],
    }  # fmt: skip
    call(ranked, target, len(x), args, strip=STRIP, k=k, room=room)
    assert (ids[-1] == -7).all()
    for row, places, numbers in zip(x, ids[:-1], greatest[:-1], strict=True):
        assert places[0] < 0 or (row[places] == numbers).all()
    return ids[:-1]


def check_ranks(x: Floats, n: int, k: int, room: int, target: str) -> int:
    """Right where there are any, and there where they must be; how many rows have them."""
    n_found = 0
    for row, ids in zip(x[:, :n], ranks(x, n, k, room, target), strict=True):
        order = np.argsort(-row, kind="stable")
        tops = np.sort([row[i : i + STRIP].max() for i in range(0, n, STRIP)])[::-1]
        finite = np.isfinite(row.max())
        near = np.count_nonzero(row >= tops[k - 1]) if finite and k <= len(tops) else room
        if near < room:
            n_found += 1
            np.testing.assert_array_equal(ids, order[:k])
        else:
            assert ids[0] == -1
    return n_found


@on_every_target
def test_ranks(target: str) -> None:
    rng = np.random.default_rng(3)
    for n, k in ((64, 1), (2000, 20), (64 * 70, 64), (64 * 100 + 7, 64)):
        x = np.full((5, n + 33), 3e38, np.float32)
        x[:, :n] = rng.standard_normal((5, n)) * 4
        x[1] = np.round(x[1])
        x[1, n:] = np.nan
        x[2, rng.integers(0, n, n // 2)] = -np.inf
        x[3, 5] = np.nan
        x[4, 7] = np.inf
        assert check_ranks(x, n, k, 256, target) == 3


@pytest.mark.parametrize(
    "value", [0.0, -0.0, -np.inf, 1e-45, -3e38], ids=["zero", "minus", "inf", "small", "large"]
)
def test_ranks_of_too_many_equals_are_left_to_others(value: float) -> None:
    x = np.full((1, 64 * 70), value, np.float32)
    assert check_ranks(x, 64 * 70, 64, 256, here()[-1]) == 0
    x[0, 9::64] = 2.0  # one a strip: not too many
    assert check_ranks(x, 64 * 70, 64, 256, here()[-1]) == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 500), st.integers(1, 8), st.integers(0, 2**32), st.data())
def test_ranks_of_any_row(n: int, k: int, seed: int, data: st.DataObject) -> None:
    x = np.random.default_rng(seed).integers(-30, 30, (1, n)).astype(np.float32)
    for odd in data.draw(st.lists(st.sampled_from(ODD), max_size=3)):
        x[0, data.draw(st.integers(0, n - 1))] = odd
    check_ranks(x, n, k, 40, here()[-1])
