"""Matrix products: every format on every target, against decoded weights in float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from codes import by_passes, codes_of, worth
from harness import Arg, Call, everywhere, here, run
from numpy.typing import NDArray
from weights import LAYOUTS, QUANTIZED, Raw, decoded, random_blocks, sizes

from satchel.formats import Q8_0
from satchel.formats.packed import PACKED, ROWS
from satchel.graph import ops
from satchel.kernels.matmul import matmul, pass_shape, run_length
from satchel.lang.target import TARGETS
from satchel.machine.tiles import DEFAULT, Tiles

Floats = NDArray[np.float32]
Wide = NDArray[np.float64]
SIGNED = "Q8_0_signed"
NONE = np.zeros(16, np.float32)
EMULATED = {
    "arm-neon": ("Q4_0", SIGNED, "Q6_K", "F16"),
    "arm-dotprod": ("Q4_1", SIGNED, "Q4_K", "BF16"),
    "arm-i8mm": (SIGNED, "Q5_K", "Q3_K"),
}
COMBINATIONS = [(t, f) for t in everywhere() for f in (LAYOUTS if t in here() else EMULATED[t])]


@dataclass(frozen=True)
class Product:
    """Weights of a format, ready to be multiplied on a target."""

    target: str
    format: str
    raw: Raw
    packed: NDArray[np.uint8]
    digits: int = 1
    gate: str | None = None

    @property
    def n_rows(self) -> int:
        return len(self.raw)

    def read(self, x: Floats) -> Wide:
        """What the kernel reads of x, as numbers."""
        return worth(codes_of(x, self.digits)) if self.format in QUANTIZED else x.astype(np.float64)

    def operand(self, x: Floats, widths: tuple[int, ...]) -> NDArray[Any]:
        """What the kernel reads of x, as it lies in memory."""
        return by_passes(codes_of(x, self.digits), widths) if self.format in QUANTIZED else x

    def call(
        self,
        x: Floats,
        bias: Floats | None = None,
        residual: Floats | None = None,
        length: int = 0,
        free: Tiles = DEFAULT,
    ) -> tuple[Call, Floats]:
        """The call for these tokens, `length` of them in a run, and its y [tokens, rows]."""
        target, tiles = TARGETS[self.target], -(-self.n_rows // ROWS)
        y = np.full((len(x), tiles * ROWS), np.nan, np.float32)
        shape = pass_shape(target, self.digits, free)
        widest: int = self.digits * shape["widths"][0]
        codes = self.operand(x, shape["widths"])
        x_bytes = codes.nbytes // len(x) // self.digits
        length = length or run_length(self.digits * x_bytes, widest, free)
        build = matmul.build(
            target, format=self.format, gate=self.gate, has_bias=bias is not None,
            has_residual=residual is not None, digits=self.digits, **shape,
        )  # fmt: skip
        args: dict[str, Arg] = {
            "y": y, "w": self.packed, "x": codes, "bias": NONE if bias is None else bias,
            "residual": NONE if residual is None else residual,
            "n_blocks": x.shape[1] // PACKED[self.format].elements, "n_tiles": tiles,
            "n_tokens": len(x), "run": length, "ahead": free.ahead_bytes, "x_bytes": x_bytes,
            "y_stride": tiles * ROWS, "residual_stride": tiles * ROWS,
        }  # fmt: skip
        return Call(build, args, tiles * -(-len(x) // length)), y

    def __call__(self, x: Floats, **more: Any) -> Floats:
        one, y = self.call(x, **more)
        run([one])
        return y

    def check(self, got: Floats, x: Floats) -> None:
        """As near as float32 sums are; the rows that fill the last tile are zeros."""
        read = self.read(x)
        size = np.abs(read) @ sizes(self.format, self.raw).T
        want = read @ decoded(self.format, self.raw).T
        assert np.all(np.abs(got[:, : self.n_rows] - want) <= 1e-6 * size)
        assert not got[:, self.n_rows :].any()


def product(target: str, format: str, rows: int, columns: int = 512, digits: int = 1) -> Product:
    raw = random_blocks(format, rows, columns, np.random.default_rng(rows))
    return Product(target, format, raw, PACKED[format].pack(raw), digits)


def tokens(n: int, columns: int = 512) -> Floats:
    x = np.random.default_rng(n).standard_normal((n, columns)).astype(np.float32)
    x[0, :32], x[-1] = 0, 1000 * x[-1]
    return x


@pytest.mark.slow
@pytest.mark.parametrize(("target", "format"), COMBINATIONS)
def test_any_number_of_tokens(target: str, format: str) -> None:
    """Right for 13 tokens, and bit-equal for fewer; 21 rows, so that the last tile is not full."""
    made, x = product(target, format, 21), tokens(13)
    counts = range(1, 14) if target in here() else (1, 2, 7, 13)
    calls = {n: made.call(x[13 - n :]) for n in counts}
    run([one for one, _ in calls.values()])
    everything = calls[13][1]
    made.check(everything, x)
    for n, (_, y) in calls.items():
        assert np.array_equal(y, everything[13 - n :]), n


@pytest.mark.slow
@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("format", ["Q4_1", "Q8_0", "Q6_K"])
def test_two_digits(target: str, format: str) -> None:
    """Nearer than one digit can be, and bit-equal for any number of tokens."""
    made, x = product(target, format, 32, digits=2), tokens(9)
    everything = made(x)
    made.check(everything, x)
    assert all(np.array_equal(made(x[9 - n :]), everything[9 - n :]) for n in range(1, 9))
    exact = x.astype(np.float64) @ decoded(format, made.raw).T
    one = product(target, format, 32)(x)
    assert np.abs(everything - exact).max() < np.abs(one - exact).max() / 50


@pytest.mark.slow
@pytest.mark.parametrize("target", here())
@pytest.mark.parametrize("format", QUANTIZED)
def test_codes_at_their_ends(target: str, format: str) -> None:
    """The largest codes of weights times the largest of activations, of both signs."""
    made = product(target, format, 16)
    for sign in (1, -1):
        x = np.full((3, 512), sign, np.float32)
        x[1, ::2] *= -1
        made.check(made(x), x)


@pytest.mark.parametrize(
    "target", [pytest.param(t, marks=pytest.mark.slow) for t in here()[:-1]] + here()[-1:]
)
def test_signed_codes_give_the_same_bits(target: str) -> None:
    """As those stored from 0 up: rows of -128, of 127, of both in turn, and of any, times tokens of
    127, of -127, of both in turn, and of any.
    """
    made, x = product(target, "Q8_0", 16), tokens(5)
    codes = made.raw.reshape(16, -1, Q8_0.bytes)[..., Q8_0.layout["qs"].offset :].view(np.int8)
    codes[0], codes[1], codes[2, :, ::2], codes[2, :, 1::2] = -128, 127, -128, 127
    x[0], x[1], x[2, ::2], x[2, 1::2] = 1, -1, 1, -1
    layouts = [Product(target, n, made.raw, PACKED[n].pack(made.raw)) for n in ("Q8_0", SIGNED)]
    got = [layout(x) for layout in layouts]
    made.check(got[0], x)
    assert np.array_equal(got[0].view(np.uint32), got[1].view(np.uint32))


@pytest.mark.parametrize("format", ["Q4_1", "F32"])
def test_bias_and_residual(format: str) -> None:
    """Added after the sum, in float32, bias first."""
    made, x = product(here()[-1], format, 48), tokens(6)
    rng = np.random.default_rng(1)
    bias = rng.standard_normal(48).astype(np.float32)
    residual = rng.standard_normal((6, 48)).astype(np.float32)
    plain = made(x)
    assert np.array_equal(made(x, bias=bias), plain + bias)
    assert np.array_equal(made(x, residual=residual), plain + residual)
    assert np.array_equal(made(x, bias=bias, residual=residual), plain + bias + residual)


@pytest.mark.parametrize("format", ["Q4_K", "F16"])
@pytest.mark.parametrize("gate", ["silu", "gelu"])
def test_gate(format: str, gate: str) -> None:
    """act(g . x) * (u . x), for tiles of the gate and of the up matrix in turn; 40 rows."""
    target, x = here()[-1], tokens(7)
    x *= 30 / np.abs(x).max()  # from where an activation is 0 to where it is x
    g, u = product(target, format, 40), product(target, format, 40)
    u = Product(target, format, g.raw[::-1].copy(), PACKED[format].pack(g.raw[::-1].copy()))
    both = np.stack([g.packed, u.packed], 1)
    made = Product(target, format, g.raw, both, gate=gate)
    want = ops.OPS[gate].meaning(g(x).astype(np.float64)) * u(x)
    got = made(x)
    np.testing.assert_allclose(got, want, rtol=3e-6, atol=1e-6 * np.abs(want).max())
    assert all(np.array_equal(made(x[7 - n :]), got[7 - n :]) for n in range(1, 7))


def test_runs_of_tokens_change_nothing() -> None:
    made, x = product(here()[-1], "Q4_0", 40), tokens(45)
    want = made(x)
    for length in (16, 24, 45, 64):
        assert np.array_equal(made(x, length=length), want)


def test_each_tile_is_its_own() -> None:
    """Tiles lo .. hi write their rows and no others."""
    made, x = product(here()[-1], "Q5_K", 64), tokens(3)
    want = made(x)
    one, y = made.call(x)
    run([Call(one.build, one.args, 3, lo=1)])
    assert np.array_equal(y[:, 16:48], want[:, 16:48])
    assert np.isnan(y[:, :16]).all()
    assert np.isnan(y[:, 48:]).all()


def test_scales_without_end_stay_in_their_row() -> None:
    """A damaged file's infinite scale spoils its own row of the result alone."""
    made, x = product(here()[-1], "Q8_0", 16), tokens(4)
    want = made(x)
    raw = made.raw.copy()
    raw[5, :2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    got = Product(made.target, "Q8_0", raw, PACKED["Q8_0"].pack(raw))(x)
    assert not np.isfinite(got[:, 5]).any()
    assert np.array_equal(np.delete(got, 5, 1), np.delete(want, 5, 1))
