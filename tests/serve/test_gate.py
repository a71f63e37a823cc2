"""Who may come in, limits of what comes in, and what the log says of it."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import httpx
import openai
import pytest
from tests.serve.served import Served, serving
from tests.test_api import make, says

from satchel.base import log
from satchel.base.errors import OptionError
from satchel.serve import run
from satchel.serve.bodies import parse
from satchel.serve.failures import RefusedError
from satchel.serve.settings import Settings

COMPLETE = "/v1/completions"
ASK: dict[str, Any] = {"prompt": "Say:", "max_tokens": 1}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org", ""])
def test_other_machines_need_a_key_or_the_word(host: str) -> None:
    with pytest.raises(OptionError, match="--api-key"):
        Settings(host=host)
    assert Settings(host=host, api_key="k").host == host
    assert Settings(host=host, insecure=True).host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_loopback_needs_none(host: str) -> None:
    assert Settings(host=host).is_loopback


@pytest.mark.parametrize("origin", ["*", "example.org", "https://example.org/", "https://", ""])
def test_origins_are_named_exactly(origin: str) -> None:
    with pytest.raises(OptionError, match="--cors-origin"):
        Settings(cors_origins=(origin,))


def test_keys_are_no_empty_ones() -> None:
    for key in ("", " ", "é"):
        with pytest.raises(OptionError, match="--api-key"):
            Settings(api_key=key)


def test_a_key_is_asked_for() -> None:
    with serving(api_key="s3cret") as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"},
                        {"Authorization": "Bearer s3cret2"},
                        {"Authorization": "Bearer \xe9"}):  # fmt: skip
            given = {name: value.encode("latin-1") for name, value in headers.items()}
            answer = served.post(COMPLETE, ASK, headers=given)
            assert answer.status_code == 401, headers
            assert answer.headers["www-authenticate"] == "Bearer"
        assert served.get("/v1/models").status_code == 401
        assert served.get("/metrics").status_code == 401
        assert served.get("/health").status_code == 200
        assert served.openai("s3cret").completions.create(model="fake", **ASK).choices
        with pytest.raises(openai.AuthenticationError):
            served.openai("other").completions.create(model="fake", **ASK)
        assert "s3cret" not in "".join(served.log)
    with serving(api_key="k", host="0.0.0.0") as served:
        # the path that counts is the request's, whatever the Host header makes of it
        for host in ("127.0.0.1/health?", "x/health#", "localhost:1/health?x="):
            assert served.get("/v1/models", headers={"Host": host}).status_code == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.com", "", "[", "localhost/x"]
)
def test_hosts_of_others_are_refused_on_loopback(shared: Served, host: str) -> None:
    answer = shared.get("/v1/models", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "bad_host")


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:80", "[::1]:8080"])
def test_own_hosts_are_fine(shared: Served, host: str) -> None:
    assert shared.get("/v1/models", headers={"Host": host}).status_code == 200


def test_pages_of_other_origins_are_refused(served: Served) -> None:
    for origin in ("https://evil.example", "null", "http://localhost:1"):
        answer = served.post(COMPLETE, ASK, headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "bad_origin")
        assert "access-control-allow-origin" not in answer.headers
    assert served.post(COMPLETE, ASK, headers={"Origin": served.url}).status_code == 200


def test_pages_of_named_origins_are_let_in() -> None:
    origin = "https://app.example"
    with serving(cors_origins=(origin,), api_key="k") as served:
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = httpx.options(served.url + COMPLETE, headers=asked)
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "authorization" in preflight.headers["access-control-allow-headers"]
        answer = served.post(COMPLETE, ASK, headers={"Origin": origin, "Authorization": "Bearer k"})
        assert answer.headers["access-control-allow-origin"] == origin
        assert served.post(COMPLETE, ASK, headers={"Origin": origin}).status_code == 401
        assert httpx.options(served.url, headers={"Origin": "https://b.example"}).status_code == 403


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"), (b"{", "not JSON"), (b'{"a": 1}}', "not JSON"), (b"\xff\xfe{}", "UTF-8"),
        (b'{"prompt": NaN}', "NaN"), (b'{"a": 1, "a": 2}', "twice"),
        (b'{"a": ' + b"9" * 5000 + b"}", "JSON"),
        (b"[" * 100 + b"]" * 100, "deeper"), (b"[" * 100_000, "deeper"),
        (b'{"a":' * 40 + b"1" + b"}" * 40, "deeper"),
    ],
)  # fmt: skip
def test_bodies_that_are_no_json(shared: Served, raw: bytes, says: str) -> None:
    answer = shared.post(COMPLETE, content=raw)
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_depth_is_counted_exactly() -> None:
    assert parse(b"[[[1]]]", 3) == [[[1]]]
    with pytest.raises(RefusedError):
        parse(b"[[[[1]]]]", 3)


def test_bodies_that_are_no_objects(shared: Served) -> None:
    for raw in (b"[]", b"3", b"null", b'"x"'):
        assert shared.post(COMPLETE, content=raw).status_code == 400


def test_large_bodies_and_heads_are_refused() -> None:
    with serving(max_body_bytes=1000, max_head_bytes=4096) as served:
        assert served.post(COMPLETE, {"prompt": "x" * 2000}).status_code == 413
        with served.socket() as client:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 8000)
            assert client.recv(100).startswith(b"HTTP/1.1 400")
        assert served.get("/health", headers={"X": "x" * 8000}).status_code == 431  # all at once
        assert served.get("/health").status_code == 200


def closes_within(client: socket.socket, seconds: float) -> bool:
    client.settimeout(seconds)
    try:
        while client.recv(1000):
            pass
    except TimeoutError:
        return False
    return True


def test_slow_heads_and_bodies_are_cut_off() -> None:
    with serving(head_s=0.3, body_s=0.3) as served:
        with served.socket() as silent, served.socket() as slow:
            begun = time.monotonic()
            slow.sendall(b"GET /health HT")
            time.sleep(0.1)
            slow.sendall(b"TP/1.1\r\nHost: ")  # trickling does not buy time
            assert closes_within(silent, 30)
            assert closes_within(slow, 30)
            assert time.monotonic() - begun < 4.5  # uvicorn's own limit is 5 s
        with served.socket() as client:
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
            )
            assert client.recv(100).startswith(b"HTTP/1.1 408")


def test_a_connection_may_last_longer_than_a_head() -> None:
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serving(head_s=1.0) as quick, quick.socket() as client:
        for _ in range(3):
            client.sendall(ask)
            answer = b""
            while b'"ok"' not in answer:
                answer += client.recv(1000) or pytest.fail("it is closed")
            assert answer.startswith(b"HTTP/1.1 200")
            time.sleep(0.4)


def test_every_line_bears_the_requests_id_and_none_the_prompt() -> None:
    with serving(log_json=True) as served:
        secret = "SESAME"
        answer = served.post(
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": secret}], "user": secret},
            headers={"X-Request-Id": "my-id.1"},
        )
        assert answer.headers["x-request-id"] == "my-id.1"
        served.post(COMPLETE, {"prompt": secret, "nonsense": secret})
        served.post(COMPLETE, content=f'{{"prompt": "{secret}"'.encode())
        served.get(f"/v1/models?{secret}")
        odd = served.get("/health", headers={"X-Request-Id": "a b\tc"})
        assert odd.headers["x-request-id"] != "a b\tc"
        assert served.logged('"status"', n=5)
        lines = [json.loads(line) for line in served.log]
    (line,) = [line for line in lines if line["request"] == "my-id.1" and "status" in line]
    assert line["status"] == 200
    assert (line["method"], line["path"], line["model"]) == ("POST", "/v1/chat/completions", "fake")
    assert line["generated_tokens"] > 5
    assert all(line["request"] for line in lines)
    assert secret not in "".join(served.log)
    assert "Grüß" not in "".join(served.log)


def test_what_other_rooms_say_is_in_the_log_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def begun(*_: Any) -> None:
        log.warning("a file is damaged")
        log.note("a licence")

    monkeypatch.setattr(run, "_serve", begun)
    assert run.serve([], Settings(port=0, log_json=True), lambda _: make(says(""))) == 0
    out, err = capsys.readouterr()
    found = [json.loads(line) for line in err.splitlines()]
    assert out == ""
    assert [(line["event"], line["said"]) for line in found] == [
        ("warning", "a file is damaged"), ("note", "a licence"),
    ]  # fmt: skip
    log.warning("later")
    assert capsys.readouterr().err == "satchel: warning: later\n"


def test_the_plain_log_is_one_line_an_event(served: Served) -> None:
    served.get("/a%0Ab%22c")
    (line,) = served.logged("status=404")
    assert "\n" not in line
    assert 'path="/a\\nb\\"c"' in line
