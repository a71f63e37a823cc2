"""How byte-level BPE cuts a text into words before it merges, by the file's `tokenizer.ggml.pre`.

The patterns are those that the models were trained with, in the form llama.cpp reads them. They run
in the `tokenizers` library's Oniguruma, whose tables know Unicode 16; llama.cpp's stop at 15.1, so
what came later is taken out again. One line in the table adds a name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from satchel.base.errors import UnsupportedError

# Letters, numbers and punctuation that Unicode 16 brought.
_NEW_LETTERS = (
    r"\x{1C89}\x{1C8A}\x{A7CB}-\x{A7CD}\x{A7DA}-\x{A7DC}\x{105C0}-\x{105F3}\x{10D4A}-\x{10D65}\x{10D6F}-\x{10D85}"
    r"\x{10EC2}-\x{10EC4}\x{11380}-\x{11389}\x{1138B}\x{1138E}\x{11390}-\x{113B5}\x{113B7}\x{113D1}\x{113D3}"
    r"\x{11BC0}-\x{11BE0}\x{13460}-\x{143FA}\x{16100}-\x{1611D}\x{16D40}-\x{16D6C}\x{18CFF}\x{1E5D0}-\x{1E5ED}\x{1E5F0}"
)
_NEW_NUMBERS = (
    r"\x{10D40}-\x{10D49}\x{116D0}-\x{116E3}\x{11BF0}-\x{11BF9}\x{16130}-\x{16139}\x{16D70}-\x{16D79}"
    r"\x{1CCF0}-\x{1CCF9}\x{1E5F1}-\x{1E5FA}"
)
_NEW_PUNCTUATION = (
    r"\x{1B4E}\x{1B4F}\x{1B7F}\x{10D6E}\x{113D4}\x{113D5}\x{113D7}\x{113D8}\x{11BE1}"
    r"\x{16D6D}-\x{16D6F}\x{1E5FF}"
)
_L = rf"[\p{{L}}&&[^{_NEW_LETTERS}]]"
_N = rf"[\p{{N}}&&[^{_NEW_NUMBERS}]]"
_P = rf"[\p{{P}}&&[^{_NEW_PUNCTUATION}]]"

_GPT2 = rf"'s|'t|'re|'ve|'m|'ll|'d| ?{_L}+| ?{_N}+| ?[^\s{_L}{_N}]+|\s+(?!\S)|\s+"


def _with_digits(digits: str) -> str:
    """Llama 3's pattern and its kin: they differ only in how many digits go together."""
    contraction = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
    words = rf"[^\r\n{_L}{_N}]?{_L}+|{digits}| ?[^\s{_L}{_N}]+[\r\n]*"
    return rf"{contraction}|{words}|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """`patterns` cut one after the other, each within the pieces of the one before.

    `add_bos` holds when the file does not say. With `whole_words`, a word that is a token is taken
    as it is, without merging.
    """

    patterns: tuple[str, ...]
    add_bos: bool = False
    whole_words: bool = False

    def compiled(self) -> Callable[[str], list[str]]:
        """The function that cuts a text into words, which joined are the text again."""
        from tokenizers import Regex, pre_tokenizers  # heavy, and needed only now

        cutters = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns]
        cutter = pre_tokenizers.Sequence(list(cutters))

        def cut(text: str) -> list[str]:
            return [word for word, _ in cutter.pre_tokenize_str(text)]

        return cut


_DEFAULT = PreTokenizer((rf"[{_P}$+<=>^~|]+", _GPT2, rf"{_N}+", "[0-9][0-9][0-9]"))
_GPT_2 = PreTokenizer((_GPT2,))
_SMOLLM = PreTokenizer((_N, _GPT2))
_LLAMA_3 = PreTokenizer((_with_digits(rf"{_N}{{1,3}}"),), add_bos=True, whole_words=True)
_QWEN_2 = PreTokenizer((_with_digits(_N),))

PRE_TOKENIZERS: dict[str, PreTokenizer] = {
    "default": _DEFAULT,
    "gpt-2": _GPT_2,
    "phi-2": _GPT_2,
    "mpt": _GPT_2,
    "olmo": _GPT_2,
    "smollm": _SMOLLM,
    "starcoder": _SMOLLM,
    "refact": _SMOLLM,
    "command-r": _SMOLLM,
    "llama-bpe": _LLAMA_3,
    "llama3": _LLAMA_3,
    "falcon3": _LLAMA_3,
    "qwen2": _QWEN_2,
    "deepseek-r1-qwen": _QWEN_2,
    "stablelm2": _QWEN_2,
}


def pre_tokenizer(name: object) -> PreTokenizer:
    """Raises UnsupportedError when the table has no such name."""
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise UnsupportedError(
            f"the pre-tokenizer {name!r} is unknown; Satchel has {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]
