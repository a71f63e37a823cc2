"""How likely tokens were, in the two shapes that OpenAI's endpoints give it."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from satchel.api import LLM, TokenLogprob

MOST_TOP = 20  # OpenAI's own limit, and Ollama's


def chat_logprobs(llm: LLM, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
    """The shape of chats; the token that ends an answer is no part of it."""
    return {"content": [_full(llm, one) for one in _said(llm, logprobs)], "refusal": None}


def _full(llm: LLM, one: TokenLogprob) -> dict[str, Any]:
    top = [_entry(llm, token, logprob) for token, logprob in one.top]
    return {**_entry(llm, one.token, one.logprob), "top_logprobs": top}


def _entry(llm: LLM, token: int, logprob: float) -> dict[str, Any]:
    piece = llm.tokenizer.piece(token)
    return {
        "token": piece.decode(errors="replace"),
        "logprob": logprob,
        "bytes": list(piece),
    }


class TextLogprobs:
    """The shape of completions, for one answer that comes in parts."""

    def __init__(self, llm: LLM) -> None:
        self._llm = llm
        self._n_chars = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, logprobs: Sequence[TokenLogprob]) -> dict[str, Any]:
        """Of a part; its places count from the answer's beginning."""
        said = _said(self._llm, logprobs)
        pieces = [self._llm.tokenizer.piece(one.token) for one in said]
        offsets: list[int] = []
        for piece in pieces:
            offsets.append(self._n_chars)
            self._n_chars += len(self._decoder.decode(piece))
        return {
            "tokens": [piece.decode(errors="replace") for piece in pieces],
            "token_logprobs": [one.logprob for one in said],
            "top_logprobs": [self._top(one) for one in said],
            "text_offset": offsets,
        }

    def _top(self, one: TokenLogprob) -> dict[str, float]:
        """By text; of several tokens with one text the likeliest counts."""
        found: dict[str, float] = {}
        for token, logprob in one.top:
            text = self._llm.tokenizer.piece(token).decode(errors="replace")
            found.setdefault(text, logprob)
        return found


def _said(llm: LLM, logprobs: Sequence[TokenLogprob]) -> list[TokenLogprob]:
    return [one for one in logprobs if one.token not in llm.tokenizer.stop_ids]
