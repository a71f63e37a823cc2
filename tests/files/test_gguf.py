"""GGUF files: what is written is read back, by us and by the gguf package; damage is named."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from satchel import formats
from satchel.base.errors import (
    FileFormatError,
    ModelNotFoundError,
    OptionError,
    SatchelError,
    UnsupportedError,
)
from satchel.files.gguf import TensorData, read_gguf, write_gguf, write_split_gguf
from satchel.files.metadata import LazyArray, ValueType

in_a_folder = settings(
    max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)

KEYS: dict[str, Any] = {
    "general.architecture": "llama",
    "u8": np.uint8(200),
    "i8": np.int8(-3),
    "u16": np.uint16(65000),
    "i16": np.int16(-300),
    "u32": 7,
    "i32": -7,
    "f32": 0.5,
    "bool": True,
    "u64": 1 << 40,
    "i64": -(1 << 40),
    "f64": np.float64(0.1),
    "numbers": np.array([1, -2, 3], np.int16),
    "floats": [0.5, 1.5],
    "flags": [True, False, True],
    "words": ["", "a", "żółw", "🐢" * 100],
    "none": np.empty(0, np.float32),
}


def a_tensor(name: str, shape: tuple[int, ...], seed: int = 0) -> TensorData:
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    return TensorData.encoded(formats.by_name(name), x)


TENSORS: dict[str, Any] = {
    "token_embd.weight": a_tensor("Q4_1", (6, 64)),
    "norm": np.arange(5, dtype=np.float32),
    "half": np.ones((2, 3, 4), np.float16),
    "output.weight": a_tensor("Q8_0", (3, 32), 1),
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    write_gguf(path, KEYS, TENSORS)
    return path


def plain(value: Any) -> Any:
    return list(value) if isinstance(value, LazyArray | np.ndarray) else value


# ---- round trips


@pytest.mark.parametrize("version", [2, 3])
def test_what_is_written_is_read(tmp_path: Path, version: int) -> None:
    write_gguf(tmp_path / "m.gguf", KEYS, TENSORS, version=version)
    file = read_gguf(tmp_path / "m.gguf")
    assert file.version == version
    assert {key: plain(value) for key, value in file.metadata.items()} == {
        key: plain(value) for key, value in KEYS.items()
    }
    assert file.tensors["half"].shape == (2, 3, 4)
    assert file.tensors["half"].format is formats.F16
    np.testing.assert_array_equal(file.raw("token_embd.weight"), TENSORS["token_embd.weight"].raw)
    np.testing.assert_array_equal(file.raw("norm").view("<f4")[0], TENSORS["norm"])
    assert all(tensor.offset % 32 == 0 for tensor in file.tensors.values())


def test_types_are_kept_when_a_file_is_written_again(model: Path, tmp_path: Path) -> None:
    file = read_gguf(model)
    assert file.metadata.types["u16"] is ValueType.U16
    again = tmp_path / "again.gguf"
    tensors = {
        name: TensorData(tensor.format, tensor.shape, file.raw(name))
        for name, tensor in file.tensors.items()
    }
    write_gguf(again, file.metadata, tensors)
    assert again.read_bytes() == model.read_bytes()


scalars = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=300),
)
lists = st.one_of(
    st.lists(st.text(max_size=300), min_size=1, max_size=200),
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1),
    st.lists(st.booleans(), min_size=1),
)


@in_a_folder
@given(keys=st.dictionaries(st.text(max_size=50), scalars | lists, max_size=8))
def test_any_metadata_is_read_back(tmp_path: Path, keys: dict[str, Any]) -> None:
    keys.pop("general.alignment", None)
    keys.pop("split.count", None)
    write_gguf(tmp_path / "any.gguf", keys, {})
    read = read_gguf(tmp_path / "any.gguf").metadata
    assert {key: plain(value) for key, value in read.items()} == keys


def test_the_gguf_package_reads_what_we_write(model: Path) -> None:
    theirs = gguf.GGUFReader(model)
    assert theirs.fields["words"].contents() == KEYS["words"]
    assert theirs.fields["i64"].contents() == KEYS["i64"]
    tensor = {t.name: t for t in theirs.tensors}["token_embd.weight"]
    np.testing.assert_array_equal(tensor.data, TENSORS["token_embd.weight"].raw)
    assert tensor.shape.tolist() == [64, 6]


def test_we_read_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "theirs.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("words", ["a", "bc"])
    writer.add_float32("eps", 0.25)
    x = np.arange(64, dtype=np.float32).reshape(2, 32)
    writer.add_tensor("w", gguf.quants.quantize(x, gguf.GGMLQuantizationType.Q8_0),
                      raw_dtype=gguf.GGMLQuantizationType.Q8_0)  # fmt: skip
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = read_gguf(path)
    assert file.metadata["general.architecture"] == "llama"
    assert plain(file.metadata["words"]) == ["a", "bc"]
    assert file.tensors["w"].shape == (2, 32)
    np.testing.assert_allclose(formats.Q8_0.decode(file.raw("w")), x, atol=0.3)


def test_tensors_are_aligned_as_the_key_says(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", {"general.alignment": 256}, TENSORS)
    file = read_gguf(tmp_path / "m.gguf")
    assert all(tensor.offset % 256 == 0 for tensor in file.tensors.values())
    np.testing.assert_array_equal(file.raw("norm").view("<f4")[0], TENSORS["norm"])


def test_arrays_are_views_of_the_file(model: Path) -> None:
    metadata = read_gguf(model).metadata
    numbers = metadata.get_numbers("numbers")
    assert not numbers.flags.owndata
    assert not numbers.flags.writeable
    words = metadata.get_array("words")
    assert (len(words), words[-1], words[1:3]) == (4, "🐢" * 100, ["a", "żółw"])
    with pytest.raises(IndexError):
        words[4]


def test_typed_access(model: Path) -> None:
    metadata = read_gguf(model).metadata
    assert metadata.get_int("u32") == 7
    assert metadata.get_float("u32") == 7.0
    assert metadata.get_int("absent", 5) == 5
    assert metadata.get_strings("words")[1] == "a"
    for wrong in (
        lambda: metadata.get_int("bool"),
        lambda: metadata.get_int("f32"),
        lambda: metadata.get_bool("u32"),
        lambda: metadata.get_str("u32"),
        lambda: metadata.get_array("u32"),
        lambda: metadata.get_numbers("words"),
        lambda: metadata.get_strings("floats"),
        lambda: metadata.get_str("absent"),
    ):
        with pytest.raises(FileFormatError, match="key '"):
            wrong()


def test_the_fingerprint_follows_the_content(model: Path, tmp_path: Path) -> None:
    before = read_gguf(model).fingerprint
    assert read_gguf(model).fingerprint == before
    write_gguf(model, KEYS | {"u32": 8}, TENSORS)
    assert read_gguf(model).fingerprint != before


# ---- split models


def test_split_models_are_read_as_one(tmp_path: Path) -> None:
    paths = write_split_gguf(tmp_path / "big.gguf", KEYS, TENSORS, 3)
    assert [path.name for path in paths][1] == "big-00002-of-00003.gguf"
    file = read_gguf(paths[0])
    assert list(file.tensors) == list(TENSORS)
    for name in ("token_embd.weight", "output.weight"):
        np.testing.assert_array_equal(file.raw(name), TENSORS[name].raw)


def test_split_models_must_be_whole(tmp_path: Path) -> None:
    paths = write_split_gguf(tmp_path / "big.gguf", KEYS, TENSORS, 3)
    with pytest.raises(FileFormatError, match=r"part 2 of 3; open the first one, big-00001-of"):
        read_gguf(paths[1])
    renamed = paths[0].with_name("renamed.gguf")
    renamed.write_bytes(paths[0].read_bytes())
    with pytest.raises(FileFormatError, match=r"does not end in -00001-of-00003\.gguf"):
        read_gguf(renamed)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(FileFormatError, match="says it is part 2 of 3, not 3 of 3"):
        read_gguf(paths[0])
    paths[2].unlink()
    with pytest.raises(ModelNotFoundError, match="big-00003-of-00003"):
        read_gguf(paths[0])
    keys = {"split.no": np.uint16(2), "split.count": np.uint16(3)}
    write_gguf(paths[2], keys, {})
    with pytest.raises(FileFormatError, match="the parts hold 2 tensors, not 4"):
        read_gguf(paths[0])
    write_gguf(paths[2], keys, {"token_embd.weight": TENSORS["norm"]})
    with pytest.raises(FileFormatError, match=r"'token_embd\.weight' is in two parts"):
        read_gguf(paths[0])


# ---- damage, each named


def bare(n_tensors: int = 0, n_keys: int = 0, version: int = 3, magic: bytes = b"GGUF") -> bytes:
    return struct.pack("<4sIQQ", magic, version, n_tensors, n_keys)


def text(content: str | bytes) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return struct.pack("<Q", len(content)) + content


def entry(name: str, dims: list[int], type_id: int = 0, offset: int = 0) -> bytes:
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, type_id, offset)


def table(*entries: bytes, data: int = 256) -> bytes:
    header = bare(len(entries)) + b"".join(entries)
    return header + bytes(-len(header) % 32) + bytes(data)


U32 = struct.pack("<I", 4)
STRING_ARRAY = struct.pack("<II", 9, 8)

DAMAGE: dict[str, tuple[bytes, type[SatchelError], str]] = {
    "empty": (b"", FileFormatError, "is empty"),
    "short": (b"GG", FileFormatError, "not a GGUF file"),
    "no gguf": (b"PK\3\4" + bytes(100), FileFormatError, "not a GGUF file"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\n", FileFormatError, "git lfs pull"),
    "only magic": (b"GGUF", FileFormatError, "the version at byte 4 needs 4 bytes"),
    "version 1": (bare(version=1), UnsupportedError, "GGUF version 1"),
    "version 4": (bare(version=4), UnsupportedError, "GGUF version 4"),
    "big-endian": (bare(version=3 << 24), UnsupportedError, "big-endian"),
    "many keys": (bare(n_keys=1 << 60), FileFormatError, "keys are more than"),
    "many tensors": (bare(n_tensors=5), FileFormatError, "5 tensors are more than"),
    "long key": (bare(0, 1) + struct.pack("<Q", 1 << 62) + bytes(99), FileFormatError,
                 "key 0: its name at byte 32 needs 4611686018427387904 bytes"),
    "key not UTF-8": (bare(0, 1) + text(b"\xff\xfe") + U32 + bytes(9), FileFormatError,
                      "key 0: its name at byte 32 is not UTF-8"),
    "twice a key": (bare(0, 2) + 2 * (text("a") + U32 + bytes(4)), FileFormatError,
                    "'a' appears twice"),
    "unknown type": (bare(0, 1) + text("a") + struct.pack("<I", 13) + bytes(9), FileFormatError,
                     "key 'a': its type at byte 33 is 13"),
    "truth 2": (bare(0, 1) + text("a") + struct.pack("<IB", 7, 2), FileFormatError, "value is 2"),
    "nested": (bare(0, 1) + text("a") + struct.pack("<IIQ", 9, 9, 1), UnsupportedError,
               "array of arrays"),
    "long array": (bare(0, 1) + text("a") + struct.pack("<IIQ", 9, 10, 1 << 61), FileFormatError,
                   "array of 2305843009213693952 elements at byte"),
    "many strings": (bare(0, 1) + text("a") + STRING_ARRAY + struct.pack("<Q", 1 << 61),
                     FileFormatError, "array of 2305843009213693952 strings"),
    "long string": (bare(0, 1) + text("a") + STRING_ARRAY + struct.pack("<QQ", 1, 1 << 63),
                    FileFormatError, "array of 1 strings"),
    "alignment 0": (bare(0, 1) + text("general.alignment") + U32 + bytes(4), FileFormatError,
                    "general.alignment is 0"),
    "alignment type": (bare(0, 1) + text("general.alignment") + struct.pack("<If", 6, 32),
                       FileFormatError, "must be a whole number"),
    "five dims": (table(entry("t", [1] * 5)), FileFormatError, "'t': it has 5 dimensions"),
    "no elements": (table(entry("t", [4, 0])), FileFormatError, "shape 0×4 is not possible"),
    "overflow": (table(entry("t", [1 << 32, 1 << 32])), FileFormatError, "is not possible"),
    "block type": (table(entry("t", [256], 23)), UnsupportedError, "'t': block type 23 (IQ4_XS)"),
    "broken block": (table(entry("t", [33], 8)), FileFormatError,
                     "'t': a row of 33 weights is not whole Q8_0 blocks of 32"),
    "unaligned": (table(entry("t", [4], 0, 8)), FileFormatError, "offset 8 is not a multiple"),
    "beyond": (table(entry("t", [65])), FileFormatError, "'t' of shape 65 ends at byte"),
    "far offset": (table(entry("t", [4], 0, (1 << 64) - 32)), FileFormatError, "cut short"),
    "twice a tensor": (table(entry("t", [4]), entry("t", [4], 0, 32)), FileFormatError,
                       "tensor 't' appears twice"),
    "overlap": (table(entry("t", [16]), entry("u", [4], 0, 32)), FileFormatError,
                "tensors 't' and 'u' overlap"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "error", "message"), DAMAGE.values(), ids=DAMAGE.keys())
def test_damage_is_named(
    tmp_path: Path, content: bytes, error: type[SatchelError], message: str
) -> None:
    path = tmp_path / "bad.gguf"
    path.write_bytes(content)
    with pytest.raises(error) as caught:
        read_gguf(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_truncation_anywhere_is_refused(model: Path) -> None:
    content = model.read_bytes()
    last = max(t.offset + t.n_bytes for t in read_gguf(model).tensors.values())
    for size in range(1, last, 5):
        model.write_bytes(content[:size])
        with pytest.raises(FileFormatError):
            read_gguf(model)
    model.write_bytes(content[:last])
    assert len(read_gguf(model).tensors) == 4


def test_damaged_elements_are_refused_when_they_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"words": ["one", "two"], "flags": [True, False, True]}, {})
    content = path.read_bytes().replace(b"two", b"\xfftw").replace(b"\1\0\1", b"\1\2\1")
    path.write_bytes(content)
    metadata = read_gguf(path).metadata
    assert metadata.get_array("words")[0] == "one"
    with pytest.raises(FileFormatError, match="'words': string 1 is not UTF-8"):
        list(metadata.get_array("words"))
    with pytest.raises(FileFormatError, match="'flags': a truth value"):
        list(metadata.get_array("flags"))


@pytest.mark.parametrize("nul", [False, True])
@pytest.mark.parametrize("bad", range(6))
def test_the_string_that_is_not_text_is_named(tmp_path: Path, bad: int, nul: bool) -> None:
    words = ["", "on\0ce" if nul else "once", "", "é" * 300, "\u65e5\U0001f600", "last"]
    words[bad] = "damage"
    path = tmp_path / "m.gguf"
    write_gguf(path, {"words": words}, {})
    path.write_bytes(path.read_bytes().replace(b"damage", b"damag\xc3"))
    with pytest.raises(FileFormatError, match=f"'words': string {bad} is not UTF-8"):
        list(read_gguf(path).metadata.get_array("words"))


def test_missing_files_and_folders(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="does not exist"):
        read_gguf(tmp_path / "absent.gguf")
    with pytest.raises(FileFormatError, match="can't be read"):
        read_gguf(tmp_path)


# ---- what the writer refuses


@pytest.mark.parametrize(
    "value",
    [1 << 64, ["a", 1], [[1], [2]], np.zeros((2, 2)), np.complex64(1), np.array(["a"]), None],
    ids=repr,
)
def test_values_that_gguf_lacks_are_refused(tmp_path: Path, value: Any) -> None:
    with pytest.raises(FileFormatError, match="'key'"):
        write_gguf(tmp_path / "m.gguf", {"key": value}, {})
    assert not list(tmp_path.iterdir())


def test_what_was_there_stays_when_writing_fails(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    with pytest.raises(FileFormatError, match="int32 is not written"):
        write_gguf(model, KEYS, {"t": np.zeros(3, np.int32)})
    with pytest.raises(FileFormatError, match="its bytes have shape"):
        write_gguf(model, KEYS, {"t": TensorData(formats.F32, (3,), np.zeros((1, 8), np.uint8))})
    with pytest.raises(OptionError, match="can't be written"):
        write_gguf(tmp_path / "absent" / "m.gguf", KEYS, TENSORS)
    assert model.read_bytes() == before
    assert list(tmp_path.iterdir()) == [model]


# ---- real files


def test_a_real_file_is_read_as_the_gguf_package_reads_it(smollm2: Path) -> None:
    ours, theirs = read_gguf(smollm2), gguf.GGUFReader(smollm2)
    assert [(t.name, list(t.shape[::-1]), t.data_offset, t.n_bytes) for t in theirs.tensors] == [
        (t.name, list(t.shape), t.offset, t.n_bytes) for t in ours.tensors.values()
    ]
    for key, value in ours.metadata.items():
        assert plain(value) == theirs.fields[key].contents()


def test_a_real_tensor_is_decoded_as_the_gguf_package_decodes_it(gemma3: Path) -> None:
    ours = read_gguf(gemma3)
    for tensor in gguf.GGUFReader(gemma3).tensors:
        if not tensor.name.startswith(("blk.0.", "blk.17.")):
            continue
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        info = ours.tensors[tensor.name]
        decoded = info.format.decode(ours.raw(tensor.name)).reshape(info.shape)
        np.testing.assert_array_equal(decoded, expected)
