"""Text to token ids and back, as the model's file describes it; ids are equal to llama.cpp's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from satchel.base.errors import TextError, UnsupportedError
from satchel.text.bpe import ByteLevel
from satchel.text.pre_tokenizers import pre_tokenizer
from satchel.text.spm import SentencePiece
from satchel.text.vocabulary import Vocabulary, read_flag, read_vocabulary

MOST_SHOWN = 4096
_SPACES = " \t\n\v\f\r"  # what a special token takes away beside itself, where it does


class Coder(Protocol):
    """What differs between the kinds of tokenizers."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text in which nothing is special."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for."""
        ...


class Tokenizer:
    """A model's tokenizer. It never changes, and threads may share it."""

    def __init__(
        self, vocabulary: Vocabulary, coder: Coder, *, add_bos: bool, spaced: bool
    ) -> None:
        """`add_bos`: what holds when the file does not say. `spaced`: texts begin with a space."""
        metadata = vocabulary.metadata
        self._vocabulary = vocabulary
        self._coder = coder
        self.shown: dict[int, str] = {}  # what `shown_text` gave lately
        self._spaced = read_flag(metadata, "add_space_prefix", spaced)
        self._strips_after = _strips_after(vocabulary)
        self.vocab_size = len(vocabulary.texts)
        self.bos = vocabulary.bos
        self.eos = vocabulary.eos
        self.eot = vocabulary.eot
        self.stop_ids = vocabulary.stop_ids
        self.add_bos = read_flag(metadata, "add_bos_token", add_bos)
        self.add_eos = read_flag(metadata, "add_eos_token", False)

    def encode(
        self, text: str, add_bos: bool = False, parse_special: bool = True, add_eos: bool = False
    ) -> list[int]:
        """The ids of a text; with `add_bos` BOS comes first, once, even if the text spells it out,
        and with `add_eos` EOS last.

        `parse_special` reads texts like "<|im_end|>" as one token. Raises TextError for half a
        surrogate pair, which is not text.
        """
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TextError(f"a {type(text).__name__} is not a text")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise TextError(
                f"the text is not Unicode: half a surrogate pair at {error.start}; leave it out"
            ) from None
        ids: list[int] = []
        after_special = True
        for part in self._parts(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._coder.encode(f" {part}" if self._spaced and after_special else part)
            after_special = isinstance(part, int)
        before = [self.bos] if add_bos and self.bos is not None and ids[:1] != [self.bos] else []
        after = [self.eos] if add_eos and self.eos is not None and ids[-1:] != [self.eos] else []
        return [*before, *ids, *after]

    def encode_whole(self, text: str, parse_special: bool = True) -> list[int]:
        """The ids of a text as the model reads a whole one: with BOS and EOS as its file says.

        Raises as `encode` does.
        """
        return self.encode(text, self.add_bos, parse_special, self.add_eos)

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of tokens; bytes that are no UTF-8 become U+FFFD.

        The inverse of `encode`: the space that some models put before each text is gone.
        """
        return self.decode_bytes(ids, skip_special, at_start=True).decode(errors="replace")

    def decode_bytes(
        self, ids: Iterable[int], skip_special: bool = True, at_start: bool = False
    ) -> bytes:
        """The bytes of tokens; `at_start` drops the space that the model puts before a text."""
        pieces = [
            self.piece(token) for token in ids if not (skip_special and self.is_special(token))
        ]
        whole = b"".join(pieces)
        return whole.removeprefix(b" ") if at_start and self._spaced else whole

    def piece(self, token: int) -> bytes:
        """The bytes that a token stands for. Raises TextError for an id that does not exist."""
        self._check(token)
        return self._coder.piece(token)

    def shown_text(self, token: int) -> str | None:
        """What a reader sees of a token by itself; None for a part of a character. Raises TextError
        for an id that does not exist.
        """
        known = self.shown
        if (text := known.get(token)) is not None:
            return text
        try:
            text = "" if self.is_special(token) else self.piece(token).decode()
        except UnicodeDecodeError:
            return None
        if len(known) >= MOST_SHOWN:
            known.clear()
        known[token] = text
        return text

    def is_special(self, token: int) -> bool:
        """Whether a token only steers the model, and is no text for a reader."""
        self._check(token)
        return token in self._vocabulary.hidden

    def special(self, text: str) -> int | None:
        """The special token that is spelled so, None where there is none."""
        return self._vocabulary.special.get(text)

    def text_of(self, token: int | None) -> str:
        """How a special token is spelled, "" for None."""
        return "" if token is None else self.piece(token).decode(errors="replace")

    def _check(self, token: int) -> None:
        if not 0 <= token < self.vocab_size:
            raise TextError(f"there is no token {token}; ids go from 0 to {self.vocab_size - 1}")

    def _parts(self, text: str, parse_special: bool) -> list[str | int]:
        """Texts and special tokens, in order. A longer special token is found before a shorter."""
        parts: list[str | int] = [text] if text else []
        letters = set(text)
        for special, token in self._vocabulary.written:
            if special[0] not in letters or special not in text:
                continue
            if not parse_special and token in self._vocabulary.structural:
                continue
            parts = [
                piece
                for part in parts
                for piece in (
                    [part] if isinstance(part, int) else self._split(part, special, token)
                )
            ]
        return parts

    def _split(self, text: str, special: str, token: int) -> list[str | int]:
        parts: list[str | int] = []
        *befores, last = text.split(special)
        for before in befores:
            parts += [before, token]
        parts.append(last)
        if token in self._strips_after:
            parts[2::2] = [str(part).lstrip(_SPACES) for part in parts[2::2]]
        return [part for part in parts if part != ""]


def load_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a model's metadata (`tokenizer.ggml.*`) describes.

    Raises UnsupportedError for a kind or a pre-tokenizer that Satchel does not have, and
    FileFormatError for a damaged description.
    """
    kind = metadata.get("tokenizer.ggml.model")
    if kind == "gpt2":
        words = pre_tokenizer(metadata.get("tokenizer.ggml.pre", "default"))
        vocabulary = read_vocabulary(metadata)
        coder = ByteLevel(vocabulary, metadata, words)
        return Tokenizer(vocabulary, coder, add_bos=words.add_bos, spaced=False)
    if kind == "llama":
        vocabulary = read_vocabulary(metadata)
        return Tokenizer(vocabulary, SentencePiece(vocabulary, metadata), add_bos=True, spaced=True)
    if kind in (None, "none", "no_vocab"):
        raise UnsupportedError("the model has no tokenizer; only a model that reads text serves")
    raise UnsupportedError(f"the tokenizer {kind!r} is unknown; Satchel has 'gpt2' and 'llama'")


def _strips_after(vocabulary: Vocabulary) -> frozenset[int]:
    """The special tokens that take away the spaces after them. Files can't say so; Phi-3's do."""
    name = str(vocabulary.metadata.get("general.name", "")).lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    keep = ("<unk>", "<s>", "<|endoftext|>")
    return frozenset(token for text, token in vocabulary.written if text not in keep)
