"""How to serve: where, for whom, within which limits."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from urllib.parse import urlsplit

from satchel.api import Pooling
from satchel.base.errors import OptionError


@dataclass(frozen=True)
class Settings:
    """Checked when made: raises OptionError, naming the flag, for what is not safe."""

    host: str = "127.0.0.1"
    port: int = 8080
    api_key: str | None = None
    insecure: bool = False  # serve others than this machine without a key
    cors_origins: tuple[str, ...] = ()  # pages of these origins may call
    log_json: bool = False
    max_requests: int = 64  # answers in the making or waiting, all models together
    max_loaded: int = 2  # models in memory at a time
    keep_alive_s: float | None = 300.0  # how long an idle model stays loaded; None: for ever
    pooling: Pooling = "mean"  # what becomes of a text's states where a request does not say
    grace_s: float = 10.0  # what running answers get at shutdown
    answer_s: float = 600.0  # the most that one answer may take
    body_s: float = 30.0  # the most that a request's body may take to come
    head_s: float = 10.0  # the same for its head
    max_body_bytes: int = 8 * 2**20
    max_head_bytes: int = 32 * 2**10
    max_depth: int = 32  # of nested JSON
    max_connections: int = 512

    def __post_init__(self) -> None:
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise OptionError("--api-key: it is empty, or not ASCII")
        if not (self.is_loopback or self.api_key or self.insecure):
            raise OptionError(
                f"--host {self.host} lets other machines in; "
                "give --api-key KEY, or say --insecure if everyone may"
            )
        for origin in self.cors_origins:
            parts = urlsplit(origin)
            if not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
                raise OptionError(
                    f"--cors-origin {origin!r} is not of the form https://example.org"
                )

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether a host's name or address is this machine itself."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
