"""Text to tokens and back, as llama.cpp's server: /tokenize, /detokenize, /apply-template."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from satchel.api import LLM
from satchel.serve.bodies import read_body
from satchel.serve.conversations import MESSAGES, TOOLS, messages_of, prompt_of
from satchel.serve.shapes import TEXT, TOKENS, TRUTH, record
from satchel.serve.state import server_of

CONTENT = {**TEXT, "maxLength": 2**18}  # what takes seconds at most
TOKENIZE = record(
    {"model": TEXT, "content": CONTENT, "add_special": TRUTH, "parse_special": TRUTH,
     "with_pieces": TRUTH},
    "content",
)  # fmt: skip
DETOKENIZE = record({"model": TEXT, "tokens": TOKENS}, "tokens")
APPLY = record({"model": TEXT, "messages": MESSAGES, **TOOLS}, "messages")


@asynccontextmanager
async def _model(request: Request, body: dict[str, Any]) -> AsyncGenerator[LLM]:
    async with server_of(request).models.held(body.get("model")) as loaded:
        yield loaded.llm


async def tokenize(request: Request) -> JSONResponse:
    """POST /tokenize."""
    body = await read_body(request, TOKENIZE)
    async with _model(request, body) as llm:
        is_whole = body.get("add_special", False)
        ids = await asyncio.to_thread(
            llm.tokenizer.encode,
            body["content"],
            add_bos=is_whole and llm.tokenizer.add_bos,
            parse_special=body.get("parse_special", True),
            add_eos=is_whole and llm.tokenizer.add_eos,
        )
        if body.get("with_pieces"):
            return JSONResponse({"tokens": [{"id": i, "piece": _piece(llm, i)} for i in ids]})
    return JSONResponse({"tokens": ids})


def _piece(llm: LLM, token: int) -> str | list[int]:
    """A token's text; its bytes where they are no text by themselves."""
    piece = llm.tokenizer.piece(token)
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


async def detokenize(request: Request) -> JSONResponse:
    """POST /detokenize."""
    body = await read_body(request, DETOKENIZE)
    async with _model(request, body) as llm:
        text = await asyncio.to_thread(llm.detokenize, body["tokens"])
    return JSONResponse({"content": text})


async def apply_template(request: Request) -> JSONResponse:
    """POST /apply-template."""
    body = await read_body(request, APPLY)
    async with _model(request, body) as llm:
        messages = messages_of(body["messages"])
        prompt = await asyncio.to_thread(prompt_of, llm, messages, body)
    return JSONResponse({"prompt": prompt.text})
