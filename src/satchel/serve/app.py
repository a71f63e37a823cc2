"""All endpoints, and the app of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from satchel.serve import (
    embeddings,
    ollama,
    ollama_models,
    openai,
    openai_chat,
    openai_text,
    page,
    responses,
    status,
    texts,
)
from satchel.serve.failures import RefusedError, respond
from satchel.serve.gate import Gate
from satchel.serve.openapi import describe
from satchel.serve.shapes import Shape
from satchel.serve.state import Server


@dataclass(frozen=True)
class Endpoint:
    """`shape` is the body's, None for one that has none."""

    method: str
    path: str
    answer: Callable[[Request], Awaitable[Response]]
    shape: Shape | None = None

    @property
    def summary(self) -> str:
        """The first line of its function's docstring."""
        return (self.answer.__doc__ or "").strip().split("\n", 1)[0]


ENDPOINTS = (
    Endpoint("GET", "/", page.page),
    Endpoint("POST", "/v1/chat/completions", openai_chat.chat, openai_chat.CHAT),
    Endpoint("POST", "/v1/completions", openai_text.complete, openai_text.COMPLETION),
    Endpoint("POST", "/v1/responses", responses.respond, responses.RESPONSE),
    Endpoint("GET", "/v1/responses/{name}", responses.retrieve),
    Endpoint("DELETE", "/v1/responses/{name}", responses.forget),
    Endpoint("POST", "/v1/embeddings", embeddings.openai, embeddings.OPENAI),
    Endpoint("GET", "/v1/models", openai.models),
    Endpoint("GET", "/v1/models/{name:path}", openai.model),
    Endpoint("POST", "/tokenize", texts.tokenize, texts.TOKENIZE),
    Endpoint("POST", "/detokenize", texts.detokenize, texts.DETOKENIZE),
    Endpoint("POST", "/apply-template", texts.apply_template, texts.APPLY),
    Endpoint("GET", "/health", status.health),
    Endpoint("GET", "/metrics", status.metrics),
    Endpoint("GET", "/sessions", status.sessions),
    Endpoint("POST", "/api/generate", ollama.generate, ollama.GENERATE),
    Endpoint("POST", "/api/chat", ollama.chat, ollama.CHAT),
    Endpoint("POST", "/api/embed", embeddings.ollama, embeddings.OLLAMA),
    Endpoint("POST", "/api/embeddings", embeddings.older, embeddings.OLDER),
    Endpoint("GET", "/api/tags", ollama_models.tags),
    Endpoint("POST", "/api/show", ollama_models.show, ollama_models.SHOW),
    Endpoint("GET", "/api/ps", ollama_models.ps),
    Endpoint("POST", "/api/pull", ollama_models.pull, ollama_models.PULL),
    Endpoint("GET", "/api/version", ollama_models.about),
)


def make_app(server: Server) -> Starlette:
    """The ASGI app that serves all endpoints, and their description at /openapi.json."""

    async def openapi(_: Request) -> JSONResponse:
        return JSONResponse(describe((e.method, e.path, e.summary, e.shape) for e in ENDPOINTS))

    routes = [Route(e.path, e.answer, methods=[e.method]) for e in ENDPOINTS]
    app = Starlette(
        routes=[*routes, Route("/openapi.json", openapi)],
        middleware=[Middleware(Gate, server=server)],
        exception_handlers={HTTPException: _no_such_endpoint},
    )
    app.router.redirect_slashes = False  # it would send clients to where their Host header says
    app.state.server = server
    return app


def _no_such_endpoint(request: Request, error: Exception) -> Response:
    """Starlette's own refusals, 404 and 405, in our shape."""
    found = error if isinstance(error, HTTPException) else HTTPException(500)
    code = {404: "no_such_endpoint", 405: "bad_method"}.get(found.status_code, "refused")
    message = f"{request.method} {request.scope['path'][:100]}: {found.detail.lower()}"
    response = respond(RefusedError(found.status_code, code, message), request.scope["path"])
    response.headers.update(found.headers or {})
    return response
