"""What every request passes: who may come in, what the log says of it, what becomes of a fault."""

from __future__ import annotations

import hmac
import re
import time
import uuid
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from satchel.serve.answers import ClientGoneError
from satchel.serve.failures import OverloadedError, RefusedError, code_of, respond, status_of
from satchel.serve.journal import request_id
from satchel.serve.settings import is_loopback
from satchel.serve.state import Server

OPEN_PATHS = ("/", "/health")  # need no key: the chat page asks for it, probes have none
# request.url is of no use here: it is made of the Host header, which may say what it likes
_HOST = re.compile(r"[\w.:\[\]-]+", re.ASCII)
_ID = re.compile(r"[\w.-]{1,64}", re.ASCII)


class Gate:
    """Middleware around all endpoints."""

    def __init__(self, app: ASGIApp, server: Server) -> None:
        self.app = app
        self.server = server
        self.n_inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        begun = time.perf_counter()
        told: dict[str, Any] = {}
        request.state.told = told
        given = request.headers.get("x-request-id", "")
        request_id.set(given if _ID.fullmatch(given) else uuid.uuid4().hex)
        reply = _Reply(send, self._headers(request))
        self.n_inside += 1
        try:
            await self._let_in(request, scope, receive, reply)
        finally:
            self.n_inside -= 1
            self.server.journal.write(
                "request",
                method=request.method,
                path=scope["path"][:100],
                status=reply.status,
                ms=round(1000 * (time.perf_counter() - begun), 1),
                **told,
            )

    async def _let_in(
        self, request: Request, scope: Scope, receive: Receive, reply: _Reply
    ) -> None:
        try:
            if self.n_inside > self.server.settings.max_connections:
                raise OverloadedError(f"{self.n_inside} requests are open; come back later")
            self._check_size(request)
            self._check_place(request)
            if request.method == "OPTIONS" and "origin" in request.headers:
                await Response(status_code=204)(scope, receive, reply)
                return
            self._check_key(request)
            await self.app(scope, receive, reply)
        except ClientGoneError:
            reply.status = 499  # nobody reads this but the log
        except Exception as error:
            if status_of(error) == 500:
                self.server.journal.fault(error)
            if reply.status:
                raise  # too late for another answer: the connection breaks off
            request.state.told["failed"] = code_of(error)
            await respond(error, scope["path"])(scope, receive, reply)

    def _check_size(self, request: Request) -> None:
        """uvicorn bounds heads that come bit by bit, and not those that come at once."""
        most = self.server.settings.max_head_bytes
        if sum(len(name) + len(value) for name, value in request.scope["headers"]) > most:
            raise RefusedError(431, "head_too_large", f"the headers are larger than {most} bytes")

    def _check_place(self, request: Request) -> None:
        """Pages of other sites can reach a loopback port through the user's browser: not here."""
        settings = self.server.settings
        host = request.headers.get("host", "")
        if settings.is_loopback and not is_loopback(_host_name(host)):
            raise RefusedError(403, "bad_host", "the Host header does not name this machine")
        origin = request.headers.get("origin")
        own = f"{request.scope['scheme']}://{host}"
        if origin is not None and origin != own and origin not in settings.cors_origins:
            raise RefusedError(
                403, "bad_origin", "pages of this origin may not call; allow it by --cors-origin"
            )

    def _check_key(self, request: Request) -> None:
        key = self.server.settings.api_key
        if key is None or request.scope["path"] in OPEN_PATHS:
            return
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        # compared in constant time: how long it takes tells nothing about the key
        if not (kind.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode())):
            raise RefusedError(401, "bad_api_key", "the API key is missing or wrong")

    def _headers(self, request: Request) -> dict[str, str]:
        headers = {"x-request-id": request_id.get(), "x-content-type-options": "nosniff"}
        origin = request.headers.get("origin")
        if origin in self.server.settings.cors_origins:
            headers |= {
                "access-control-allow-origin": str(origin),
                "access-control-allow-methods": "GET, POST, DELETE",
                "access-control-allow-headers": "authorization, content-type, x-request-id",
                "access-control-max-age": "600",
                "vary": "Origin",
            }
        return headers


class _Reply:
    """Sends on, with more headers; notes the status."""

    def __init__(self, send: Send, headers: dict[str, str]) -> None:
        self._send = send
        self._headers = headers
        self.status: int | None = None

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            MutableHeaders(scope=_mutable(message)).update(self._headers)
        await self._send(message)


def _mutable(message: Message) -> MutableMapping[str, Any]:
    message["headers"] = list(message.get("headers", ()))
    return message


def _host_name(host: str) -> str:
    """The name in a Host header, "" when it is none."""
    if not _HOST.fullmatch(host):
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
