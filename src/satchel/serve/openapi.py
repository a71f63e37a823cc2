"""The description of all endpoints, for tools: OpenAPI 3.1, made of the shapes that bodies obey."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

from satchel.serve.shapes import Shape


def describe(endpoints: Iterable[tuple[str, str, str, Shape | None]]) -> dict[str, Any]:
    """`endpoints` are (method, path, summary, shape of the body)."""
    paths: dict[str, dict[str, Any]] = {}
    for method, path, summary, shape in endpoints:
        shown = path.replace(":path}", "}")
        told: dict[str, Any] = {"summary": summary, "responses": RESPONSES}
        if "{" in shown:
            told["parameters"] = [
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
            ]
        if shape is not None:
            told["requestBody"] = {
                "required": True,
                "content": {"application/json": {"schema": shape}},
            }
        paths.setdefault(shown, {})[method.lower()] = told
    return {
        "openapi": "3.1.0",
        "info": {"title": "Satchel", "version": version("satchel")},
        "paths": paths,
    }


RESPONSES = {
    "200": {"description": "The answer."},
    "default": {"description": "What is wrong, in OpenAI's or, under /api/, in Ollama's shape."},
}
