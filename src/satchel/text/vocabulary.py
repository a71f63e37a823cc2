"""A model's tokens as its file lists them: texts, kinds, and those with a meaning of their own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Any, cast

from satchel.base.errors import FileFormatError


class Kind(IntEnum):
    """GGUF's numbers in `tokenizer.ggml.token_type`."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Tokens whose text alone tells their meaning. Files often mark them wrongly, so llama.cpp goes by
# these names too. Separated by spaces; the first that is there counts.
_END_OF_TURN = (
    "<|eot_id|> <|im_end|> <|end|> <end_of_turn> <|endoftext|> <|end_of_text|> <EOT> _<EOT> [EOT]"
    " <｜end▁of▁sentence｜> <end_of_utterance>"
)
_END_OF_MESSAGE = "<|eom_id|>"
_OTHER_ENDS = (
    "<|return|> <|call|> <|flush|> <|calls|> </s> [EOS] <eos> <turn|> <|tool_response>"
    " <start_function_response> [e~["
)
_FILL_IN = {
    "fim_pre": "<|fim_prefix|> <fim-prefix> <fim_prefix> <｜fim▁begin｜> <PRE> ▁<PRE>"
    " <|code_prefix|> <|prefix|>",
    "fim_suf": "<|fim_suffix|> <fim-suffix> <fim_suffix> <｜fim▁hole｜> <SUF> ▁<SUF>"
    " <|code_suffix|> <|suffix|>",
    "fim_mid": "<|fim_middle|> <fim-middle> <fim_middle> <｜fim▁end｜> <MID> ▁<MID>"
    " <|code_middle|> <|middle|>",
    "fim_pad": "<|fim_pad|> <fim-pad> <fim_pad> <PAD> [PAD]",
    "fim_rep": "<|fim_repo|> <|repo_name|> <fim-repo> <REPO> <reponame>",
    "fim_sep": "<|file_sep|>",
}
_FILL_IN_ENDS = (
    "fim_pad",
    "fim_rep",
    "fim_sep",
)  # a model that writes one of these has begun another file
_ALWAYS_SHOWN = (
    "<|channel|>",
    "<|message|>",
    "<|start|>",
    "<|constrain|>",
)  # the structure of gpt-oss's answers


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a model: `texts[id]` as the file has it, `kinds[id]` a Kind.

    Reading a special token raises FileFormatError when the file marks one that does not exist.
    """

    metadata: Mapping[str, Any]
    texts: list[str]
    kinds: list[int]

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text -> id."""
        return dict(zip(self.texts, range(len(self.texts)), strict=True))

    @cached_property
    def bos(self) -> int | None:
        """The token that begins a text."""
        return self._id("bos")

    @cached_property
    def eos(self) -> int | None:
        """The token that ends a text."""
        return self._id("eos")

    @cached_property
    def eot(self) -> int | None:
        """The token that ends a turn of a conversation."""
        return self._id("eot", _END_OF_TURN)

    @cached_property
    def eom(self) -> int | None:
        """The token that ends a message when the same turn goes on (after a tool call)."""
        return self._id("eom", _END_OF_MESSAGE)

    @cached_property
    def unknown(self) -> int | None:
        """The token for what no other can write."""
        return self._id("unknown")

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Every token that ends a generation."""
        files = (self._id(key, _FILL_IN[key]) for key in _FILL_IN_ENDS)
        marked = (self.eos, self.eot, self.eom, *files)
        ends = self._ends | {token for token in marked if token is not None}
        has_call = "<|call|>" in self.ids and "<|return|>" in self.ids
        if has_call or ("<|calls|>" in self.ids and "<|flush|>" in self.ids):
            ends.discard(
                self.ids.get("<|end|>", -1)
            )  # there, it only closes one part of the answer
        strike = self.ids.get("</s>")
        if strike != self.eos and strike in self._marked(Kind.USER_DEFINED):
            ends.discard(strike)  # a tag of HTML, as in Gemma's vocabulary
        return frozenset(ends)

    @cached_property
    def written(self) -> list[tuple[str, int]]:
        """(text, id) of the tokens that are found in a text before any merge, the longest first."""
        tokens = self._marked(Kind.CONTROL, Kind.UNKNOWN, Kind.USER_DEFINED) | self._named
        pairs = [(self.texts[token], token) for token in sorted(tokens | self._shown)]
        return sorted(pairs, key=lambda pair: len(pair[0].encode()), reverse=True)

    @cached_property
    def special(self) -> dict[str, int]:
        """Text -> id of those of `written`."""
        return dict(self.written)

    @cached_property
    def structural(self) -> frozenset[int]:
        """Those of `written` that mean the token only when a text's author says so."""
        return frozenset((self._marked(Kind.CONTROL, Kind.UNKNOWN) | self._named) - self._shown)

    @cached_property
    def hidden(self) -> frozenset[int]:
        """Tokens that steer the model and are no text for a reader."""
        silent = self._marked(Kind.CONTROL, Kind.UNKNOWN) | self.stop_ids
        return frozenset(silent - self._shown)

    @cached_property
    def _shown(self) -> set[int]:
        return {self.ids[name] for name in _ALWAYS_SHOWN if name in self.ids}

    @cached_property
    def _named(self) -> set[int]:
        """Tokens that are control tokens by their name, whatever the file says."""
        fill_in = (
            self._named_id(names) for key, names in _FILL_IN.items() if self._marked_id(key) is None
        )
        return self._ends | {token for token in fill_in if token is not None}

    @cached_property
    def _ends(self) -> set[int]:
        names = f"{_END_OF_TURN} {_END_OF_MESSAGE} {_OTHER_ENDS}".split()
        return {self.ids[name] for name in names if name in self.ids}

    @cached_property
    def _unusual(self) -> list[int]:
        normal = int(
            Kind.NORMAL
        )  # an enum's member is slow to look up a quarter of a million times
        return [token for token, kind in enumerate(self.kinds) if kind != normal]

    def _marked(self, *kinds: Kind) -> set[int]:
        """The tokens to which the file gives one of these kinds."""
        return {token for token in self._unusual if self.kinds[token] in kinds}

    def _id(self, key: str, names: str = "") -> int | None:
        """The token that the file marks as `key`, else the first whose text is one of `names`."""
        marked = self._marked_id(key)
        return self._named_id(names) if marked is None else marked

    def _named_id(self, names: str) -> int | None:
        return next((self.ids[name] for name in names.split() if name in self.ids), None)

    def _marked_id(self, key: str) -> int | None:
        name = f"tokenizer.ggml.{key}_token_id"
        token = self.metadata.get(name)
        if token is None:
            return None
        if not isinstance(token, int) or not 0 <= token < len(self.texts):
            raise FileFormatError(
                f"{name} is {token!r}, not one of {len(self.texts)} tokens; convert the model again"
            )
        return token


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises FileFormatError when the lists are missing, too short, or hold a text twice."""
    texts: list[str] = read_list(metadata, "tokens", str)
    if not texts:
        raise FileFormatError("tokenizer.ggml.tokens is empty; convert the model again")
    if "" in texts:
        texts = [text or f"[EMPTY_{token}]" for token, text in enumerate(texts)]
    kinds: list[int] = [int(Kind.NORMAL)] * len(texts)
    if "tokenizer.ggml.token_type" in metadata:
        kinds = read_list(metadata, "token_type", int)
    if len(kinds) < len(texts):
        raise FileFormatError(
            f"the file lists {len(texts)} tokens but {len(kinds)} types; it is damaged"
        )
    vocabulary = Vocabulary(metadata, texts, kinds[: len(texts)])
    if len(vocabulary.ids) != len(texts):
        twice = len(texts) - len(vocabulary.ids)
        raise FileFormatError(f"the file lists {twice} tokens twice; convert the model again")
    return vocabulary


def read_list(metadata: Mapping[str, Any], key: str, *kinds: type) -> list[Any]:
    """A list of the tokenizer's, all items of these kinds. Raises FileFormatError."""
    name = f"tokenizer.ggml.{key}"
    if name not in metadata:
        raise FileFormatError(f"{name} is missing; convert the model again")
    value = metadata[name]
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise FileFormatError(f"{name} is not a list; convert the model again")
    items: list[Any] = list(cast("Iterable[Any]", value))
    if set(map(type, items)).difference(kinds):
        raise FileFormatError(
            f"{name} holds more than {kinds[0].__name__}; convert the model again"
        )
    return items


def read_flag(metadata: Mapping[str, Any], key: str, default: bool) -> bool:
    """A flag of the tokenizer, `default` when the file does not say. Raises FileFormatError."""
    value = metadata.get(f"tokenizer.ggml.{key}", default)
    if not isinstance(value, bool):
        raise FileFormatError(
            f"tokenizer.ggml.{key} is {value!r}, not true or false; convert the model again"
        )
    return value
