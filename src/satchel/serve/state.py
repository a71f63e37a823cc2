"""What all endpoints share: settings, models, log, counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import cast

from starlette.requests import Request

from satchel.serve.journal import Journal
from satchel.serve.metrics import Metrics
from satchel.serve.models import Models
from satchel.serve.response_store import ResponseStore
from satchel.serve.settings import Settings


@dataclass
class Server:
    """One for an app, used by the event loop's thread."""

    settings: Settings
    models: Models
    journal: Journal
    metrics: Metrics = field(default_factory=Metrics)
    responses: ResponseStore = field(default_factory=ResponseStore)
    in_flight: int = 0  # answers in the making or waiting
    pulling: bool = False  # a model is being fetched


def server_of(request: Request) -> Server:
    """The server that a request came to."""
    return cast("Server", request.app.state.server)
