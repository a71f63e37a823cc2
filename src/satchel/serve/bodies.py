"""Bodies of requests: read within limits of size, depth and time, and checked against a shape."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from starlette.requests import ClientDisconnect, Request

from satchel.serve.failures import RefusedError
from satchel.serve.shapes import Shape, check, without_nulls


async def read_body(request: Request, shape: Shape) -> dict[str, Any]:
    """The fields of a JSON body; null fields are left out.

    Raises RefusedError for a body that is compressed, too large, too deep, too slow or no JSON, and
    FieldError or UnsupportedFieldError for one that does not fit.
    """
    settings = request.app.state.server.settings
    for coding in request.headers.getlist("content-encoding"):
        if coding.strip().lower() not in ("", "identity"):
            raise RefusedError(
                415,
                "unsupported_encoding",
                f"Content-Encoding: {coding[:40]} is not supported; send the body as it is",
            )
    try:
        async with asyncio.timeout(settings.body_s):
            raw = await _collect(request, settings.max_body_bytes)
    except TimeoutError:
        raise RefusedError(408, "timeout", "the body did not come in time") from None
    value = without_nulls(parse(raw, settings.max_depth), shape)
    check(value, shape)
    return cast("dict[str, Any]", value)


async def _collect(request: Request, max_bytes: int) -> bytes:
    parts: list[bytes] = []
    left = max_bytes
    try:
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                raise RefusedError(
                    413, "body_too_large", f"the body is larger than {max_bytes} bytes"
                )
            parts.append(part)
    except ClientDisconnect:
        raise RefusedError(400, "bad_json", "the body broke off") from None
    return b"".join(parts)


def parse(raw: bytes, max_depth: int) -> Any:
    """JSON, strictly: UTF-8, no NaN, no field twice, not too deep. Raises RefusedError."""
    value: Any = None
    try:
        value = json.loads(
            raw.decode("utf-8"), object_pairs_hook=_no_doubles, parse_constant=_no_constants
        )
        too_deep = _is_deeper(value, max_depth)
    except UnicodeDecodeError:
        raise RefusedError(400, "bad_json", "the body is not UTF-8") from None
    except RecursionError:
        too_deep = True
    except ValueError as error:
        # the parser's own words hold positions, never content
        reason = str(error) if isinstance(error, json.JSONDecodeError | _DoubleError) else "number"
        raise RefusedError(400, "bad_json", f"the body is not JSON: {reason}") from None
    if too_deep:
        raise RefusedError(400, "bad_json", f"the body is nested deeper than {max_depth}")
    return value


class _DoubleError(ValueError):
    pass


def _no_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _DoubleError("an object has a field twice")
    return found


def _no_constants(_: str) -> Any:
    raise _DoubleError("NaN and Infinity are no JSON")


def _is_deeper(value: Any, most: int) -> bool:
    level = [value]
    for _ in range(most):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in cast(
                "list[Any]",
                list(cast("dict[str, Any]", one).values()) if isinstance(one, dict) else one,
            )
        ]
        if not level:
            return False
    return any(isinstance(one, dict | list) for one in level)
