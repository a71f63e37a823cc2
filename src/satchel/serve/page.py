"""The chat page at /: one page that loads nothing else, put together from the parts in web/.

Its policy lets the browser run this one script and use this one style, known by their hashes, and
talk to this server alone. The page holds no secret, so it needs no key; what it asks for does.
Policy: w3.org/TR/CSP3, w3.org/TR/trusted-types.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response

SCRIPTS = ("markdown", "store", "server", "view", "talk", "list", "start")
STYLE = ("<style>", "</style>")
SCRIPT = ('<script type="module">', "</script>")


async def page(_: Request) -> Response:
    """GET /: the chat page; needs no key."""
    html, policy = make_page()
    return Response(
        html,
        media_type="text/html",
        headers={
            "cache-control": "no-cache",
            "content-security-policy": policy,
            "cross-origin-resource-policy": "same-origin",
            "referrer-policy": "no-referrer",
            "x-frame-options": "DENY",
        },
    )


@cache
def make_page() -> tuple[str, str]:
    """The page, and the policy that fits it."""
    script = "".join(f"\n{part(f'{name}.js')}" for name in SCRIPTS)
    style = f"\n{part('look.css')}"
    html = part("page.html").replace("".join(STYLE), style.join(STYLE))
    html = html.replace("".join(SCRIPT), script.join(SCRIPT))
    rules = (
        "default-src 'none'",
        f"script-src '{digest(script)}'",
        f"style-src '{digest(style)}'",
        "connect-src 'self'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
    return html, "; ".join(rules)


def part(name: str) -> str:
    """A file of web/."""
    return (files("satchel.serve") / "web" / name).read_text(encoding="utf-8")


def digest(text: str) -> str:
    """How a policy names a text."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
