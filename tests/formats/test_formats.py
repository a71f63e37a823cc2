"""Decoding and encoding are bit-equal to the gguf package's, on any bytes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from satchel import formats
from satchel.base.dtypes import bf16, f16, u8
from satchel.base.errors import FileFormatError, UnsupportedError
from satchel.formats import FORMATS, Block

all_formats = pytest.mark.parametrize("block", FORMATS, ids=lambda block: block.name)
ENCODABLE = [block for block in FORMATS if block.can_encode]
encodable = pytest.mark.parametrize("block", ENCODABLE, ids=lambda block: block.name)
quantized = pytest.mark.parametrize(
    "block", [block for block in FORMATS if block.elements > 1], ids=lambda block: block.name
)


def theirs(block: type[Block]) -> GGMLQuantizationType:
    return GGMLQuantizationType(block.type_id)


def assert_same_bits(ours: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit; which of its many patterns a NaN has does not matter."""
    assert ours.dtype == np.float32
    assert ours.shape == expected.shape
    different = ours.view(np.uint32) != expected.view(np.uint32)
    assert not (different & ~(np.isnan(ours) & np.isnan(expected))).any()


@all_formats
def test_sizes_and_numbers_are_ggmls(block: type[Block]) -> None:
    assert GGML_QUANT_SIZES[theirs(block)] == (block.elements, block.bytes)
    assert theirs(block).name == block.name
    assert formats.by_id(block.type_id) is formats.by_name(block.name) is block


@all_formats
@settings(max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), blocks=st.integers(1, 3))
def test_decode_of_any_bytes(block: type[Block], seed: int, rows: int, blocks: int) -> None:
    random = np.random.default_rng(seed)
    raw = random.integers(0, 256, (2, rows, blocks * block.bytes), np.uint8)
    with np.errstate(all="ignore"):
        expected = quants.dequantize(raw, theirs(block)).reshape(2, rows, -1)
    assert_same_bits(block.decode(raw), expected)


@all_formats
def test_decode_of_every_half_as_scale(block: type[Block]) -> None:
    """Infinite, NaN and subnormal scales too."""
    halves = [field for field in block.layout.values() if field.dtype is f16]
    raw = np.random.default_rng(3).integers(0, 256, (1 << 16, block.bytes), np.uint8)
    for field in halves:
        pattern = np.arange(1 << 16, dtype="<u2").view(np.uint8).reshape(-1, 2)
        raw[:, field.offset : field.offset + 2] = pattern
    with np.errstate(all="ignore"):
        assert_same_bits(block.decode(raw), quants.dequantize(raw, theirs(block)))


@quantized
def test_weights_are_scale_times_code_plus_offset(block: type[Block]) -> None:
    raw = np.random.default_rng(4).integers(0, 256, (3, 4 * block.bytes), np.uint8)
    scale, offset = block.scales(raw)
    codes = block.codes(raw)
    assert codes.dtype == np.int8
    assert codes.shape == (3, 4 * block.elements)
    assert scale.shape == (3, 4 * block.groups)
    with np.errstate(all="ignore"):
        weights = codes.reshape(*scale.shape, -1) * scale[..., None]
        if offset is not None:
            weights += offset[..., None]
    assert_same_bits(weights.reshape(codes.shape), block.decode(raw))


@settings(max_examples=40)
@given(
    x=arrays.arrays(
        np.float32,
        (3, 64),
        elements=st.floats(-(2**10), 2**10, width=32, allow_subnormal=False)
        .map(lambda v: 0.0 if abs(v) < 2**-20 else v),
    )
)  # fmt: skip
def test_encode(x: np.ndarray) -> None:
    for block in ENCODABLE:
        expected = quants.quantize(x, theirs(block)).view(np.uint8).reshape(3, -1)
        np.testing.assert_array_equal(block.encode(x), expected, block.name)


@pytest.mark.parametrize("block", [formats.F32, formats.F16, formats.BF16], ids=lambda b: b.name)
@given(bits=arrays.arrays(np.uint32, (1, 64), elements=st.integers(0, 2**32 - 1)))
def test_plain_formats_round_any_float_to_nearest(block: type[Block], bits: np.ndarray) -> None:
    x = bits.view(np.float32)
    with np.errstate(all="ignore"):
        expected = quants.quantize(x, theirs(block))
    again = quants.dequantize(expected.view(np.uint8), theirs(block))
    assert_same_bits(block.decode(block.encode(x)), again.reshape(x.shape))


@encodable
def test_encoded_weights_stay_close(block: type[Block]) -> None:
    x = np.random.default_rng(5).standard_normal((7, 96)).astype(np.float32)
    weights = block.decode(block.encode(x))
    bound = 0.0 if block is formats.F32 else np.abs(x).max() / 6
    assert np.abs(weights - x).max() <= bound


@quantized
def test_quantized_formats_refuse_infinities(block: type[Block]) -> None:
    x = np.zeros((1, block.elements), np.float32)
    x[0, 3] = np.inf
    with pytest.raises(UnsupportedError, match=block.name):
        block.encode(x)


@pytest.mark.parametrize("tiny", [1e-42, 1e-39, 1e-10])
@pytest.mark.parametrize(
    "block", [b for b in FORMATS if b.can_encode and b.elements > 1], ids=lambda block: block.name
)
def test_weights_too_small_for_a_scale_become_zero(block: type[Block], tiny: float) -> None:
    x = np.linspace(-tiny, tiny, block.elements, dtype=np.float32)[None]
    assert not block.decode(block.encode(x)).any()


@all_formats
def test_broken_blocks_are_refused(block: type[Block]) -> None:
    if block.bytes > 1:
        with pytest.raises(FileFormatError, match=block.name):
            block.decode(np.zeros(block.bytes + 1, np.uint8))
    if block.elements > 1:
        with pytest.raises(FileFormatError, match=f"{block.elements + 1} weights"):
            block.row_bytes(block.elements + 1)


def test_decode_takes_little_memory_beside_its_result() -> None:
    raw = np.zeros((512, formats.Q4_K.row_bytes(4096)), np.uint8)
    tracemalloc.start()
    weights = formats.Q4_K.decode(raw)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < weights.nbytes + (1 << 21)


def test_fields_are_views_at_their_offsets() -> None:
    raw = np.arange(2 * 40, dtype=np.uint8).reshape(2, 40)
    fields = formats.Q4_1.fields(raw)
    assert fields["qs"].shape == (2, 2, 16)
    assert fields["d"].dtype == np.float16
    np.testing.assert_array_equal(fields["qs"][1, 1], raw[1, 24:40])
    assert [f.offset for f in formats.Q4_1.layout.values()] == [0, 2, 4]


def test_the_byte_count_is_checked_when_a_format_is_made() -> None:
    with pytest.raises(TypeError, match="take 18 bytes, not 20"):

        class Wrong(Block, elements=32, bytes=20):  # pyright: ignore[reportUnusedClass]
            d = bf16
            qs = u8 * 16


@pytest.mark.parametrize(
    ("type_id", "name"), [(23, "IQ4_XS"), (26, "I32"), (4, "unknown"), (2**32 - 1, "unknown")]
)
def test_other_formats_are_named(type_id: int, name: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{type_id} \\({name}\\)"):
        formats.by_id(type_id)


def test_unknown_names_are_named() -> None:
    with pytest.raises(UnsupportedError, match="Q9_9"):
        formats.by_name("Q9_9")
