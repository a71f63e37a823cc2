"""What is refused, with which status and which words; and that one failure touches no other."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import mmap
import threading
from collections.abc import AsyncGenerator
from typing import Any

import openai
import pytest
from tests.engine.fake import FakeModel
from tests.serve.served import SAYS, Held, Served, held, serving, wait_for
from tests.test_api import Slow, make, says

from satchel.serve.answers import ClientGoneError
from satchel.serve.streams import Streamed

CHAT, COMPLETE = "/v1/chat/completions", "/v1/completions"
HELLO: list[Any] = [{"role": "user", "content": "Hello"}]


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "tools", [{"type": "function", "function": {"name": "f"}}]),  # by its template
        (CHAT, "functions", [{"name": "f"}]),
        (CHAT, "reasoning_effort", "high"),
        (CHAT, "modalities", ["text", "audio"]),
        (CHAT, "store", True),
        (CHAT, "adaptive_target", 0.5),
        (COMPLETE, "suffix", "x"),
        (COMPLETE, "best_of", 2),
        (COMPLETE, "messages", []),
    ],
)
def test_a_field_that_is_not_honoured_is_named(
    shared: Served, path: str, field: str, value: Any
) -> None:
    body = {"messages": HELLO} if path == CHAT else {"prompt": "x"}
    answer = shared.post(path, {**body, field: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported", field)
    assert error["type"] == "invalid_request_error"
    assert field in error["message"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "hot"), ("temperature", -1), ("temperature", True), ("top_p", 1.5),
        ("top_k", 1.5), ("min_p", [0.1]), ("max_tokens", "9"), ("max_tokens", -2), ("n", 0),
        ("n", 10**9), ("seed", 0.5), ("stop", [""]), ("stop", 5), ("stream", "yes"),
        ("stream_options", {"include_usage": 1}), ("logit_bias", {"x": 1}),
        ("dry_base", 0.5), ("dry_sequence_breakers", "x"), ("mirostat", 1), ("typical_p", 2),
        ("logit_bias", {"5": "1"}), ("logit_bias", {"999999": 1}), ("model", 5), ("messages", "Hi"),
        ("messages", []), ("messages[0].content", [{"role": "user", "content": 5}]),
        ("messages[0].role", [{"role": "king", "content": "x"}]),
        ("messages[0].content", [{"role": "user"}]), ("choice", []), ("choice", "a"),
        ("tool_choice", "always"),
    ],
)  # fmt: skip
def test_a_value_that_makes_no_sense_is_named(shared: Served, field: str, value: Any) -> None:
    answer = shared.post(CHAT, {"messages": HELLO, field.partition("[")[0]: value})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "bad_option")
    assert error["param"].startswith(field)


SAMPLED = {
    "typical_p": 0.9, "top_n_sigma": 2, "xtc_probability": 0.5, "xtc_threshold": 0.2,
    "dynatemp_range": 0.3, "dynatemp_exponent": 2, "dry_multiplier": 0.8, "dry_base": 2,
    "dry_allowed_length": 1, "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n"],
}  # fmt: skip


@pytest.mark.parametrize(
    "fields", [SAMPLED, {"mirostat": 2, "mirostat_tau": 3, "mirostat_eta": 0.2}]
)
def test_every_sampler_of_llama_cpp_is_taken(shared: Served, fields: dict[str, Any]) -> None:
    for path, asked in ((CHAT, {"messages": HELLO}), ("/v1/completions", {"prompt": "x"})):
        answer = shared.post(path, {**asked, "max_tokens": 5, "seed": 1, **fields})
        assert answer.status_code == 200, answer.json()
    options = {"num_predict": 5, **fields}
    answer = shared.post("/api/generate", {"model": "fake", "prompt": "x", "options": options})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("path", ["/v1/completions", "/api/generate", "/tokenize"])
def test_a_compressed_body_is_refused(shared: Served, path: str) -> None:
    body = json.dumps({"model": "fake", "prompt": "Say:", "content": "a"}).encode()
    for coding in ("gzip", "br, gzip"):
        headers = {"content-encoding": coding, "content-type": "application/json"}
        answer = shared.post(path, content=gzip.compress(body), headers=headers)
        assert answer.status_code == 415
        assert f"Content-Encoding: {coding} is not supported" in answer.text
    plain = {"content-encoding": "identity"}
    assert shared.post("/tokenize", {"content": "a"}, headers=plain).status_code == 200


def test_fields_that_exclude_each_other_are_named(shared: Served) -> None:
    answer = shared.post(CHAT, {"messages": HELLO, "mirostat": 2, "top_k": 7})
    assert answer.status_code == 400
    assert "top_k: mirostat takes its place" in answer.json()["error"]["message"]


def test_what_asks_for_nothing_is_taken(served: Served) -> None:
    neutral: dict[str, Any] = {
        "response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "n": 1,
        "logprobs": False, "user": "me", "stop": None, "temperature": 0, "audio": None,
    }  # fmt: skip
    answer = served.post(CHAT, {"messages": HELLO, **neutral})
    assert answer.json()["choices"][0]["message"]["content"] == SAYS


@pytest.mark.parametrize("prompt", [[], [[]], [""], 5, [5, "x"]])
def test_a_prompt_that_says_nothing_is_refused(shared: Served, prompt: Any) -> None:
    answer = shared.post(COMPLETE, {"prompt": prompt})
    assert answer.status_code == 400
    assert "prompt" in answer.json()["error"]["message"]


def test_two_limits_must_agree(shared: Served) -> None:
    answer = shared.post(CHAT, {"messages": HELLO, "max_tokens": 4, "max_completion_tokens": 5})
    assert answer.json()["error"]["param"] == "max_tokens"


def test_a_prompt_that_is_too_long_is_refused_and_never_cut(shared: Served) -> None:
    with pytest.raises(openai.BadRequestError) as failed:
        shared.openai().completions.create(model="fake", prompt="x" * 256)
    assert failed.value.code == "context_length_exceeded"
    streamed = shared.post(COMPLETE, {"prompt": "x" * 256, "stream": True})
    assert streamed.status_code == 400  # not a 200 that breaks off


def test_a_prompt_that_cannot_fit_is_refused_before_it_is_tokenized(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.post("/api/generate", {"model": "fake"})
    monkeypatch.setattr(type(served.llm.tokenizer), "encode", None)  # would be a fault
    for path, body in (
        (COMPLETE, {"prompt": "x" * 5_000_000}),
        ("/api/generate", {"model": "fake", "prompt": "x" * 5000, "raw": True}),
    ):
        answer = served.post(path, body)
        assert (answer.status_code, "characters" in answer.text) == (400, True)
    long = served.post("/tokenize", {"content": "x" * 300_000})
    assert (long.status_code, long.json()["error"]["param"]) == (400, "content")


def test_one_who_does_not_read_is_left() -> None:
    ended: list[bool] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        try:
            yield b"x"
        finally:
            ended.append(True)

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    async def respond() -> None:
        await Streamed(None, chunks(), "text/plain", 0.05)({}, never, never)

    with pytest.raises(ClientGoneError):
        asyncio.run(respond())


def test_no_such_endpoint_or_method(shared: Served) -> None:
    answer = shared.get("/v1/rerank")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_endpoint")
    answer = shared.post(CHAT + "/", {"messages": HELLO})  # nobody is sent elsewhere
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_such_endpoint")
    answer = shared.get(CHAT)
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_overload_is_503_with_retry_after() -> None:
    with serving(lambda _: make(says("x" * 200), kind=Held), max_requests=2) as served:
        client = served.openai()
        streams = [client.completions.create(model="fake", prompt="Say:", stream=True)
                   for _ in range(2)]  # fmt: skip
        refused = served.post(COMPLETE, {"prompt": "Say:"})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "overloaded")
        assert int(refused.headers["retry-after"]) >= 1
        assert served.get("/health").status_code == 200
        for stream in streams:
            stream.close()
        held(served.llm).set()
        wait_for(lambda: served.server.in_flight == 0)
        assert served.post(COMPLETE, {"prompt": "Say:", "max_tokens": 1}).status_code == 200
        too_many = served.post(COMPLETE, {"prompt": "Say:", "n": 3})
        assert (too_many.status_code, too_many.json()["error"]["param"]) == (400, "n")


class Broken(FakeModel):
    """Fails in a step of its own for the prompt "Bad"."""

    def run(self, batch: Any) -> Any:
        if bytes(batch.tokens[:3].astype("uint8")) == b"Bad":
            raise ZeroDivisionError("secret words")
        return super().run(batch)


def test_no_room_for_a_thread_is_503(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_map(*_: Any) -> Any:
        raise OSError(errno.ENOMEM, "no")

    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", no_map)
        answer = served.post("/v1/completions", {"prompt": "Say:"})
        assert (answer.status_code, "one more thread" in answer.text) == (503, True)
        assert "retry-after" in answer.headers
    assert served.post("/v1/completions", {"prompt": "Say:"}).status_code == 200


def test_a_fault_of_ours_is_500_and_tells_nothing() -> None:
    with serving(lambda _: make(says(SAYS), kind=Broken)) as served:
        answer = served.post(COMPLETE, {"prompt": "Bad"})
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (500, "internal_error")
        assert served.logged("fault", answer.headers["x-request-id"])
        assert "secret" not in answer.text + "".join(served.log)
        streamed = served.post(COMPLETE, {"prompt": "Bad", "stream": True})
        assert '"code":"internal_error"' in streamed.text
        assert served.post(COMPLETE, {"prompt": "Say:"}).json()["choices"][0]["text"] == SAYS
        assert served.server.in_flight == served.busy_pages() == 0


def test_a_failure_touches_no_other() -> None:
    """One request's template error, long prompt and bad bias, while another is answered."""
    with serving(lambda _: make(says("abc" * 40), kind=Slow)) as served:
        stream = served.openai().completions.create(
            model="fake", prompt="Say:", stream=True, temperature=0
        )
        text = next(stream).choices[0].text
        bad: list[Any] = [
            {"prompt": "x" * 300}, {"prompt": [5, 10**7]},
            {"prompt": "x", "logit_bias": {"9999": 1}}, {"prompt": "x\ud800"}, {"prompt": ""},
        ]  # fmt: skip
        threads = [threading.Thread(target=served.post, args=(COMPLETE,), kwargs={
            "content": json.dumps(body).encode()}) for body in bad]  # fmt: skip
        for thread in threads:
            thread.start()
        text += "".join(chunk.choices[0].text for chunk in stream)
        for thread in threads:
            thread.join()
        assert text == "abc" * 40


def test_an_answer_may_take_so_long_and_no_longer() -> None:
    with serving(lambda _: make(says("x" * 240), kind=Slow), answer_s=0.05) as served:
        answer = served.post(COMPLETE, {"prompt": "Say:"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "timeout")
        assert served.busy_pages() == 0
