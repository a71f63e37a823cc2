"""Failures as a client sees them: a status, and a body in the shape of the protocol it speaks."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from starlette.responses import JSONResponse

from satchel.base.errors import OptionError, SatchelError, in_one_line

STATUS = {
    "bad_option": 400,
    "bad_text": 400,
    "bad_template": 400,
    "unsupported": 400,
    "context_length_exceeded": 400,
    "model_not_found": 404,
    "out_of_memory": 503,
    "download_failed": 503,
    "cancelled": 503,
}
RETRY_S = 1  # what a client that comes too early is told to wait


class RefusedError(SatchelError):
    """A request that is turned away before it is looked at."""

    code = "refused"

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class OverloadedError(RefusedError):
    """More is asked than can wait."""

    def __init__(self, message: str) -> None:
        super().__init__(503, "overloaded", message)


@contextmanager
def schema_named(field: str) -> Generator[None]:
    """Faults of an answer's schema are told under the name of the field that the client sent."""
    try:
        yield
    except OptionError as error:
        said = re.sub(r"^json_schema\b|(?<=kept to with )json_schema\b", field, str(error), count=1)
        raise OptionError(said) if said != str(error) else error from None


def status_of(error: Exception) -> int:
    """The HTTP status of an error; 500 is a fault of ours."""
    error = in_one_line(error)
    if isinstance(error, RefusedError):
        return error.status
    return STATUS.get(error.code, 500) if isinstance(error, SatchelError) else 500


def code_of(error: Exception) -> str:
    """A stable word for programs."""
    error = in_one_line(error)
    return error.code if isinstance(error, SatchelError) else "internal_error"


def message_of(error: Exception) -> str:
    """One line for people. What a fault of ours says may be private, so it is not told."""
    error = in_one_line(error)
    if isinstance(error, SatchelError):
        return str(error)
    return "something went wrong in the server; its log says more under this request's id"


def openai_error(error: Exception) -> dict[str, Any]:
    """The body of an error in OpenAI's shape."""
    status = status_of(error)
    kind = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}.get(
        status, "invalid_request_error" if status < 500 else "server_error"
    )
    return {
        "error": {
            "message": message_of(error),
            "type": kind,
            "param": _field(error),
            "code": code_of(error),
        }
    }


def ollama_error(error: Exception) -> dict[str, Any]:
    """The body of an error in Ollama's shape."""
    return {"error": message_of(error)}


def respond(error: Exception, path: str) -> JSONResponse:
    """The response to a request that failed, in the shape that its path's clients read."""
    status = status_of(error)
    headers = {"Retry-After": str(RETRY_S)} if status == 503 else {}
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    shape = ollama_error if path.startswith("/api/") else openai_error
    return JSONResponse(shape(error), status, headers)


def _field(error: Exception) -> str | None:
    """The field that is at fault, where the error knows it: our messages begin with it."""
    field = getattr(error, "field", None)
    if field is None and code_of(error) in ("bad_option", "unsupported"):
        match = re.match(r"([\w.]+): ", str(error))
        field = match[1] if match else None
    return field
