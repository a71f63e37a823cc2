"""How the server is: /health, /metrics, /sessions."""

from __future__ import annotations

import time

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse

from satchel.serve.state import server_of


async def health(_: Request) -> JSONResponse:
    """GET /health: whether requests are taken; needs no key."""
    return JSONResponse({"status": "ok"})


async def metrics(request: Request) -> PlainTextResponse:
    """GET /metrics, for Prometheus."""
    server = server_of(request)
    usages = [loaded.llm.usage() for loaded in server.models.loaded.values()]
    return PlainTextResponse(
        server.metrics.text(usages, server.models.past, server.in_flight),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    )


async def sessions(request: Request) -> JSONResponse:
    """GET /sessions: the conversations whose beginnings are cached, of all loaded models."""
    now = time.monotonic()
    return JSONResponse([
        {
            "model": loaded.name,
            "id": kept.id,
            "is_processing": kept.is_busy,
            "n_tokens": len(kept.tokens),
            "n_requests": kept.n_requests,
            "n_ctx": loaded.llm.context_length,
            "idle_s": 0.0 if kept.is_busy else round(now - kept.used_s, 3),
        }
        for loaded in server_of(request).models.loaded.values()
        for kept in loaded.sessions.list()
    ])  # fmt: skip
