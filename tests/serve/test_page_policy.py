"""How the chat page is served: alone, with a policy that names what it may run, to whom."""

from __future__ import annotations

import base64
import hashlib
import re

import httpx
from tests.serve.served import Served, serving

from satchel.serve.page import SCRIPTS, make_page, part


def policy(answer: httpx.Response) -> dict[str, str]:
    rules = answer.headers["content-security-policy"].split("; ")
    return dict(rule.split(" ", 1) for rule in rules)


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_the_page_runs_what_it_holds_and_nothing_else(shared: Served) -> None:
    answer = shared.get("/")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    (script,) = re.findall(r"<script[^>]*>(.*?)</script>", answer.text, re.DOTALL)
    (style,) = re.findall(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    rules = policy(answer)
    assert rules["default-src"] == rules["base-uri"] == rules["frame-ancestors"] == "'none'"
    assert rules["script-src"] == digest(script)
    assert rules["style-src"] == digest(style)
    assert rules["connect-src"] == "'self'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_the_page_loads_nothing_and_reads_no_text_as_html() -> None:
    html, _ = make_page()
    assert len(html) > 40_000
    outside = re.findall(r"""(?:src|href)=["']?(?!#|data:)[^\s"'>]+|url\([^)]*\)|@import""", html)
    assert outside == []
    assert not re.search(r"\sstyle=|\son\w+=", part("page.html"))
    for name in SCRIPTS:
        script = part(f"{name}.js")
        assert not re.search(
            r"[iI]nnerHTML|outerHTML|insertAdjacent|document\.write|eval\(", script
        )
        assert len(script.splitlines()) <= 500
        assert not re.search(r"(TODO|FIXME|console\.)", script)


def test_every_part_that_is_named_is_there() -> None:
    html = part("page.html")
    ids = set(re.findall(r'\sid="([\w-]+)"', html))
    assert len(ids) == len(re.findall(r'\sid="', html)), "two elements of one id"
    scripts = "".join(part(f"{name}.js") for name in SCRIPTS)
    assert set(re.findall(r'\bat\("([\w-]+)"\)', scripts)) <= ids
    assert set(re.findall(r'href="#([\w-]+)"', html)) <= ids
    assert set(re.findall(r'\sfor="([\w-]+)"', html)) <= ids


def test_the_page_needs_no_key_but_the_right_place() -> None:
    with serving(api_key="k") as served:
        assert served.get("/").status_code == 200
        assert served.get("/v1/models").status_code == 401
        assert served.get("/", headers={"Host": "evil.example"}).status_code == 403
        assert served.get("/", headers={"Origin": "https://evil.example"}).status_code == 403
        assert served.post("/").status_code == 405
