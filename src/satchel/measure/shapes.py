"""Model files with the shape of a real model and random weights: as fast as the real one.

Every engine that reads GGUF can be timed on the same file, without a download. The texts such a
model writes mean nothing.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from satchel import formats
from satchel.base.errors import OptionError
from satchel.files.gguf import TensorData, read_gguf, write_gguf
from satchel.formats import Block

POOL_BLOCKS = 512  # random blocks whose weights are looked at to find a sane scale


@dataclass(frozen=True)
class Shape:
    """The numbers of a model."""

    arch: str
    n_layers: int
    dim: int
    ffn_dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    vocab_size: int
    pre: str  # the name of its tokenizer's rules
    context: int
    theta: float
    eps: float = 1e-5
    tied: bool = True
    biased: bool = False  # q, k and v have biases
    rope_factors: bool = False  # a tensor says how far each pair of dims is stretched

    def matrices(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name and (rows, columns) of all matrices, in the order of the file."""
        yield "token_embd.weight", (self.vocab_size, self.dim)
        if not self.tied:
            yield "output.weight", (self.vocab_size, self.dim)
        q_dim, kv_dim = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        for i in range(self.n_layers):
            yield f"blk.{i}.attn_q.weight", (q_dim, self.dim)
            yield f"blk.{i}.attn_k.weight", (kv_dim, self.dim)
            yield f"blk.{i}.attn_v.weight", (kv_dim, self.dim)
            yield f"blk.{i}.attn_output.weight", (self.dim, q_dim)
            yield f"blk.{i}.ffn_gate.weight", (self.ffn_dim, self.dim)
            yield f"blk.{i}.ffn_up.weight", (self.ffn_dim, self.dim)
            yield f"blk.{i}.ffn_down.weight", (self.dim, self.ffn_dim)

    def vectors(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Norms of ones, biases of zeros, rope factors of ones."""
        yield "output_norm.weight", np.ones(self.dim, np.float32)
        if self.rope_factors:
            yield "rope_freqs.weight", np.ones(self.head_dim // 2, np.float32)
        for i in range(self.n_layers):
            yield f"blk.{i}.attn_norm.weight", np.ones(self.dim, np.float32)
            yield f"blk.{i}.ffn_norm.weight", np.ones(self.dim, np.float32)
            if self.biased:
                heads = {"q": self.n_heads, "k": self.n_kv_heads, "v": self.n_kv_heads}
                for name, n in heads.items():
                    yield f"blk.{i}.attn_{name}.bias", np.zeros(n * self.head_dim, np.float32)


SHAPES = {
    "smollm2-135m": Shape("llama", 30, 576, 1536, 9, 3, 64, 49152, "smollm", 8192, 1e5),
    "llama-3.2-1b": Shape(
        "llama", 16, 2048, 8192, 32, 8, 64, 128256, "llama-bpe", 131072, 5e5, rope_factors=True
    ),
    "llama-3.2-1b-slice": Shape("llama", 2, 2048, 8192, 32, 8, 64, 8192, "llama-bpe", 4096, 5e5),
    "llama-3.2-1b-layer": Shape("llama", 1, 2048, 8192, 32, 8, 64, 512, "llama-bpe", 4096, 5e5),
    "llama-3.2-3b": Shape(
        "llama", 28, 3072, 8192, 24, 8, 128, 128256, "llama-bpe", 131072, 5e5, rope_factors=True
    ),
    "llama-3.1-8b": Shape(
        "llama", 32, 4096, 14336, 32, 8, 128, 128256, "llama-bpe", 131072, 5e5,
        tied=False, rope_factors=True,
    ),
    "qwen2.5-0.5b": Shape(
        "qwen2", 24, 896, 4864, 14, 2, 64, 151936, "qwen2", 32768, 1e6, 1e-6, biased=True
    ),
    "qwen2.5-7b": Shape(
        "qwen2", 28, 3584, 18944, 28, 4, 128, 152064, "qwen2", 32768, 1e6, 1e-6,
        tied=False, biased=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """The block formats of a kind of file, as llama.cpp's quantizer chooses them.

    `head` is the format of what gives the logits, `more` that of the layers' most sensitive
    matrices, in about half of the layers.
    """

    file_type: int  # llama.cpp's number of the kind
    most: str
    head: str
    more: str | None = None

    def format(self, name: str, columns: int, shape: Shape) -> type[Block]:
        """The format of a matrix; another one where its rows are not whole blocks."""
        if name == ("token_embd.weight" if shape.tied else "output.weight"):
            chosen = self.head
        elif self.more and is_sensitive(name, shape.n_layers):
            chosen = self.more
        else:
            chosen = self.most
        while columns % formats.by_name(chosen).elements:
            chosen = INSTEAD[chosen]
        return formats.by_name(chosen)


RECIPES = {
    "q4_0": Recipe(2, "Q4_0", "Q6_K"),
    "q4_1": Recipe(3, "Q4_1", "Q6_K"),
    "q4_k_m": Recipe(15, "Q4_K", "Q6_K", "Q6_K"),
    "q5_k_m": Recipe(17, "Q5_K", "Q6_K", "Q6_K"),
    "q6_k": Recipe(18, "Q6_K", "Q6_K"),
    "q8_0": Recipe(7, "Q8_0", "Q8_0"),
    "f16": Recipe(1, "F16", "F16"),
}

INSTEAD = {
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0",
    "Q4_0": "F16", "Q4_1": "F16", "Q5_0": "F16", "Q5_1": "F16", "Q8_0": "F16",
}  # fmt: skip
"""What is taken for rows that are not whole blocks."""


def is_sensitive(name: str, n_layers: int) -> bool:
    """Whether the mixed recipes give a matrix more bits: values and down projections of the first
    and the last eighth of the layers, and of every third between them."""
    if not name.endswith(("attn_v.weight", "ffn_down.weight")):
        return False
    layer, eighth = int(name.split(".")[1]), n_layers // 8
    return layer < eighth or layer >= 7 * n_layers // 8 or (layer - eighth) % 3 == 2


def shape_named(name: str) -> Shape:
    """Raises OptionError, with the names there are."""
    if name not in SHAPES:
        raise OptionError(f"no shape {name!r}; there are {', '.join(SHAPES)}")
    return SHAPES[name]


def recipe_named(name: str) -> Recipe:
    """Raises OptionError, with the names there are."""
    if name.lower() not in RECIPES:
        raise OptionError(f"no format {name!r} for shapes; there are {', '.join(RECIPES)}")
    return RECIPES[name.lower()]


def write_shape(path: Path, shape: str, recipe: str) -> None:
    """Write a model file. Raises OptionError for unknown names, or where the disk is too full."""
    numbers, kinds = shape_named(shape), recipe_named(recipe)
    tensors: dict[str, TensorData | NDArray[Any]] = {}
    blocks = RandomBlocks()
    for name, (rows, columns) in numbers.matrices():
        tensors[name] = blocks.matrix(kinds.format(name, columns, numbers), rows, columns)
    tensors |= dict(numbers.vectors())
    metadata = metadata_of(_name(shape, recipe), numbers, kinds.file_type)
    n_bytes = sum(t.n_bytes if isinstance(t, TensorData) else t.nbytes for t in tensors.values())
    _check_room(path.parent, n_bytes + (64 << 20))  # the header's tokens, and some room
    write_gguf(path, metadata, tensors)


@contextmanager
def shape_file(shape: str, recipe: str, keep: Path | None = None) -> Generator[Path]:
    """A model file: `keep`, written if it is not there; or one that is deleted in the end.

    Raises as `write_shape` does, and OptionError where `keep` is some other file.
    """
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="satchel-") as folder:
            path = Path(folder) / f"{_name(shape, recipe)}.gguf"
            write_shape(path, shape, recipe)
            yield path
        return
    if not keep.exists():
        write_shape(keep, shape, recipe)
    elif read_gguf(keep).metadata.get("general.name") != _name(shape, recipe):
        raise OptionError(f"{keep} is another model than {_name(shape, recipe)}; name a new file")
    yield keep


def _name(shape: str, recipe: str) -> str:
    return f"{shape}-{recipe.lower()}-random"


class RandomBlocks:
    """Random blocks of each format. A matrix's rows are views of one run of them, each shifted by
    a block: so a file of any size needs little memory, and still no two rows are alike."""

    def __init__(self) -> None:
        self._draw = np.random.default_rng(0)
        self._runs: dict[str, NDArray[np.uint8]] = {}

    def matrix(self, block: type[Block], rows: int, columns: int) -> TensorData:
        """A matrix that keeps the size of what it is multiplied with, more or less."""
        row_bytes = block.row_bytes(columns)
        run = self._run(block, rows * block.bytes + row_bytes)
        start = int(self._draw.integers(len(run) // block.bytes - rows - columns // block.elements))
        at = run[start * block.bytes :]
        raw = as_strided(at, (rows, row_bytes), (block.bytes, 1), writeable=False)
        return TensorData(block, (rows, columns), raw)

    def _run(self, block: type[Block], n_bytes: int) -> NDArray[np.uint8]:
        """At least so many bytes of blocks, and some more to start at."""
        known = self._runs.get(block.name)
        if known is None or len(known) < n_bytes + SPARE * block.bytes:
            n_blocks = n_bytes // block.bytes + 2 * SPARE
            known = self._runs[block.name] = random_blocks(block, n_blocks, self._draw)
        return known


SPARE = 1024


def random_blocks(
    block: type[Block], n_blocks: int, draw: np.random.Generator, deviation: float = 0.02
) -> NDArray[np.uint8]:
    """Blocks [n_blocks * bytes] of random codes whose weights have mean 0 and this deviation."""
    if block.name in ("F16", "F32", "BF16"):
        weights = draw.standard_normal(n_blocks, np.float32) * np.float32(deviation)
        return block.encode(weights)
    raw = draw.integers(0, 256, n_blocks * block.bytes, np.uint8)
    offset = next((name for name in ("m", "dmin") if name in block.layout), None)
    sample = raw[: POOL_BLOCKS * block.bytes].copy()

    def decoded(d: float, least: float) -> NDArray[np.float32]:
        _set(block, sample, "d", d)
        if offset:
            _set(block, sample, offset, least)
        return block.decode(sample)

    least = -float(decoded(1, 0).mean() / decoded(0, 1).mean()) if offset else 0.0
    d = deviation / float(decoded(1, least).std())
    _set(block, raw, "d", d)
    if offset:
        _set(block, raw, offset, d * least)
    return raw


def _set(block: type[Block], raw: NDArray[np.uint8], field: str, value: float) -> None:
    raw.view(block.record)[field] = value


def metadata_of(name: str, shape: Shape, file_type: int) -> Mapping[str, Any]:
    """All keys that engines ask for; of the tokenizer as little as they are content with."""
    letters = _byte_letters()
    merged = letters[ord(" ")] + "t"
    n_fillers = shape.vocab_size - len(letters) - 2
    tokens = [*letters, merged, *(f"<{i}>" for i in range(n_fillers)), "<end>"]
    kinds = np.ones(len(tokens), np.int32)
    kinds[-1] = 3  # steers the model
    end = len(tokens) - 1
    numbers = {
        "block_count": shape.n_layers,
        "context_length": shape.context,
        "embedding_length": shape.dim,
        "feed_forward_length": shape.ffn_dim,
        "attention.head_count": shape.n_heads,
        "attention.head_count_kv": shape.n_kv_heads,
        "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim,
        "attention.layer_norm_rms_epsilon": np.float32(shape.eps),
        "rope.dimension_count": shape.head_dim,
        "rope.freq_base": np.float32(shape.theta),
        "vocab_size": shape.vocab_size,
    }
    return {
        "general.architecture": shape.arch,
        "general.name": name,
        "general.file_type": file_type,
        "general.quantization_version": 2,
        **{f"{shape.arch}.{key}": value for key, value in numbers.items()},
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": shape.pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [f"{letters[ord(' ')]} t"],
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def _byte_letters() -> list[str]:
    """The letter that stands for each byte in byte-level BPE: itself where it can be seen."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    hidden = iter(range(256, 512))
    return [chr(byte) if byte in seen else chr(next(hidden)) for byte in range(256)]


def _check_room(folder: Path, n_bytes: int) -> None:
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise OptionError(
            f"{folder} can't be used: {error.strerror}; name a folder that is there"
        ) from None
    if free < n_bytes:
        needed, there = math.ceil(n_bytes / 1e6), free // 1_000_000
        raise OptionError(
            f"the model takes {needed} MB, and {folder} has {there} MB free; use --keep on a "
            "larger disk"
        )
