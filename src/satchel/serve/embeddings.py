"""Texts as vectors: OpenAI's /v1/embeddings, Ollama's /api/embed and its older /api/embeddings.

Vectors are the loaded model's final states, pooled and of length one. `dimensions` keeps the first
so many numbers and makes them of length one again, as models trained for it allow. What is longer
than the context is refused; only Ollama's `truncate: true` asks for less.
"""

from __future__ import annotations

import asyncio
import base64
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from starlette.requests import Request
from starlette.responses import JSONResponse

from satchel.api import LLM, Embeddings, Pooling
from satchel.serve.answers import elapsed_ns, until_gone
from satchel.serve.asks import MOST, text_prompt
from satchel.serve.bodies import read_body
from satchel.serve.durations import parse_duration
from satchel.serve.failures import OverloadedError, RefusedError
from satchel.serve.shapes import (
    NUMBER,
    TEXT,
    TOKENS,
    TRUTH,
    WHOLE,
    FieldError,
    between,
    choice,
    either,
    listing,
    record,
)
from satchel.serve.state import server_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Vectors = npt.NDArray[np.float32]

MOST_TEXTS = 2048  # OpenAI's own limit
LONGEST_CUT = 2**18  # characters: a longer text is not tokenized only to be cut
IDS = {**TOKENS, "minItems": 1}
DIMENSIONS = between(WHOLE, 1, MOST)
OPENAI = record(
    {
        "model": TEXT,
        "input": either(TEXT, IDS, listing(TEXT, MOST_TEXTS, 1), listing(IDS, MOST_TEXTS, 1)),
        "encoding_format": choice("float", "base64"),
        "dimensions": DIMENSIONS,
        "pooling": choice("mean", "last"),
        "user": TEXT,  # a label
    },
    "input",
)
ASKING = {
    "model": TEXT,
    "options": record({"num_ctx": between(WHOLE, 1, MOST)}),
    "keep_alive": either(TEXT, NUMBER),
}
OLLAMA = record(
    {
        **ASKING,
        "input": either(TEXT, listing(TEXT, MOST_TEXTS, 1)),
        "truncate": TRUTH,
        "dimensions": DIMENSIONS,
    },
    "model",
    "input",
)
OLDER = record({**ASKING, "prompt": TEXT}, "model", "prompt")


@dataclass(frozen=True)
class Embedded:
    """What came of a request."""

    model: str
    vectors: Vectors
    n_tokens: int
    load_ns: int


async def openai(request: Request) -> JSONResponse:
    """POST /v1/embeddings."""
    body = await read_body(request, OPENAI)
    found = await _embed(request, body, _texts(body["input"]))
    in_base64 = body.get("encoding_format") == "base64"
    return JSONResponse(
        {
            "object": "list",
            "data": [
                {
                    "object": "embedding",
                    "index": index,
                    "embedding": _in_base64(vector) if in_base64 else vector.tolist(),
                }
                for index, vector in enumerate(found.vectors)
            ],
            "model": found.model,
            "usage": {"prompt_tokens": found.n_tokens, "total_tokens": found.n_tokens},
        }
    )


async def ollama(request: Request) -> JSONResponse:
    """POST /api/embed."""
    begun_s = time.perf_counter()
    body = await read_body(request, OLLAMA)
    found = await _embed(request, body, _texts(body["input"]))
    return JSONResponse(
        {
            "model": found.model,
            "embeddings": found.vectors.tolist(),
            "total_duration": elapsed_ns(begun_s),
            "load_duration": found.load_ns,
            "prompt_eval_count": found.n_tokens,
        }
    )


async def older(request: Request) -> JSONResponse:
    """POST /api/embeddings, as older clients of Ollama ask."""
    body = await read_body(request, OLDER)
    found = await _embed(request, body, [body["prompt"]])
    return JSONResponse({"embedding": found.vectors[0].tolist()})


def _texts(given: Any) -> list[str | list[int]]:
    """One text or many, as text or as tokens."""
    if isinstance(given, str) or isinstance(given[0], int):
        return [given]
    return cast("list[str | list[int]]", given)


async def _embed(request: Request, body: dict[str, Any], texts: list[str | list[int]]) -> Embedded:
    """Counts as one answer in the making, and is given up when the client leaves."""
    server, begun_s = server_of(request), time.perf_counter()
    keep_s = parse_duration(body["keep_alive"]) if "keep_alive" in body else -1
    pooling = body.get("pooling", server.settings.pooling)
    if server.in_flight >= server.settings.max_requests:
        raise OverloadedError(f"{server.in_flight} answers are in the making; come back later")
    server.in_flight += 1
    try:
        async with server.models.held(body.get("model"), keep_s) as loaded:
            load_ns, llm = elapsed_ns(begun_s), loaded.llm
            pending = await asyncio.to_thread(_prepare, llm, body, texts, pooling)
            computing = time.perf_counter()
            work = _result(pending, server.settings.answer_s)
            vectors = await until_gone(request.receive, work)
            server.metrics.count_embedded(pending.n_tokens, time.perf_counter() - computing)
            request.state.told |= {"model": loaded.name, "prompt_tokens": pending.n_tokens}
            return Embedded(loaded.name, _cut(vectors, body), pending.n_tokens, load_ns)
    finally:
        server.in_flight -= 1


def _prepare(
    llm: LLM, body: dict[str, Any], texts: list[str | list[int]], pooling: Pooling
) -> Embeddings:
    if body.get("options", {}).get("num_ctx", 0) > llm.context_length:
        raise FieldError("num_ctx", f"it is more than the context of {llm.context_length}")
    cut = body.get("truncate", False)
    prompts = [_tokens(llm, text, cut) if isinstance(text, str) else text for text in texts]
    return llm.embeddings(prompts, pooling)


def _tokens(llm: LLM, text: str, cut: bool) -> list[int]:
    if cut and len(text) <= LONGEST_CUT:
        ids, most = llm.tokenizer.encode_whole(text), llm.context_length
        last = ids[-1:] if llm.tokenizer.add_eos else []  # the text is cut, not what ends it
        return ids if len(ids) <= most else [*ids[: most - len(last)], *last]
    return text_prompt(llm, text)


async def _result(pending: Embeddings, limit_s: float) -> Vectors:
    """The vectors; when that takes too long, or is no longer wanted, it ends within a step."""
    working = asyncio.ensure_future(asyncio.to_thread(pending.result))
    try:
        async with asyncio.timeout(limit_s):
            return await asyncio.shield(working)
    except TimeoutError:
        raise RefusedError(503, "timeout", f"no answer within {limit_s:g} s") from None
    finally:
        pending.cancel()
        await asyncio.gather(working, return_exceptions=True)


def _cut(vectors: Vectors, body: dict[str, Any]) -> Vectors:
    n = body.get("dimensions", vectors.shape[1])
    if n > vectors.shape[1]:
        raise FieldError("dimensions", f"{n} are more than the model's {vectors.shape[1]}")
    if n == vectors.shape[1]:
        return vectors
    cut = vectors[:, :n]
    lengths = np.linalg.norm(cut, axis=1, keepdims=True)
    return (cut / np.where(lengths, lengths, 1)).astype(np.float32)


def _in_base64(vector: Vectors) -> str:
    """The numbers as little-endian float32."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()
