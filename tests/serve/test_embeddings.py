"""Texts as vectors, by OpenAI's and Ollama's clients."""

from __future__ import annotations

import base64
import time
from typing import Any

import numpy as np
import ollama
import openai
import pytest
from tests.engine.fake import STATE_DIM
from tests.serve.served import Served, serving, wait_for
from tests.test_api import Slow, make, says

TEXTS = ["a cat", "a kitten", "a car"]


def test_openai_client(shared: Served) -> None:
    done = shared.openai().embeddings.create(model="fake", input=TEXTS)  # asks for base64
    got = np.array([one.embedding for one in done.data], np.float32)
    assert np.array_equal(got, shared.llm.embed(TEXTS))
    assert [one.index for one in done.data] == [0, 1, 2]
    assert done.model == "fake"
    assert done.usage.prompt_tokens == done.usage.total_tokens == sum(map(len, TEXTS))


def test_numbers_and_base64_are_the_same(shared: Served) -> None:
    client = shared.openai()
    (plain,) = client.embeddings.create(
        model="fake", input=list(b"abc"), encoding_format="float"
    ).data
    (coded,) = shared.post(
        "/v1/embeddings", {"model": "fake", "input": [list(b"abc")], "encoding_format": "base64"}
    ).json()["data"]
    numbers = np.frombuffer(base64.b64decode(coded["embedding"]), "<f4")
    assert np.array_equal(np.array(plain.embedding, np.float32), numbers)
    assert np.array_equal(numbers, shared.llm.embed("abc")[0])


def test_fewer_dimensions_are_of_length_one_again(shared: Served) -> None:
    done = shared.openai().embeddings.create(model="fake", input="abc", dimensions=3)
    got, whole = np.array(done.data[0].embedding), shared.llm.embed("abc")[0]
    assert got == pytest.approx(whole[:3] / np.linalg.norm(whole[:3]), rel=1e-6)
    with pytest.raises(openai.BadRequestError, match=f"9 are more than the model's {STATE_DIM}"):
        shared.openai().embeddings.create(model="fake", input="abc", dimensions=9)


def test_pooling_is_the_servers_or_the_requests() -> None:
    with serving(pooling="last") as served:
        client = served.openai()
        last, mean = (
            client.embeddings.create(model="fake", input="abc", extra_body=body).data[0].embedding
            for body in ({}, {"pooling": "mean"})
        )
        assert np.array_equal(np.array(last, np.float32), served.llm.embed("abc", "last")[0])
        assert np.array_equal(np.array(mean, np.float32), served.llm.embed("abc", "mean")[0])


def test_ollama_client(shared: Served) -> None:
    client = shared.ollama()
    done = client.embed("fake", TEXTS, keep_alive="10m")
    assert np.array_equal(np.array(done.embeddings, np.float32), shared.llm.embed(TEXTS))
    assert (done.model, done.prompt_eval_count) == ("fake", sum(map(len, TEXTS)))
    assert done.total_duration
    one = client.embed("fake", "abc", dimensions=4)
    assert len(one.embeddings[0]) == 4
    older = client.embeddings("fake", "abc")
    assert np.array_equal(np.array(older.embedding, np.float32), shared.llm.embed("abc")[0])


def test_only_who_asks_for_it_gets_less_embedded(shared: Served) -> None:
    client, long = shared.ollama(), "x" * 300
    for ask in (lambda: client.embed("fake", long), lambda: client.embed("fake", long, False)):
        with pytest.raises(ollama.ResponseError, match="300 tokens are more than the context"):
            ask()
    with pytest.raises(openai.BadRequestError) as failed:
        shared.openai().embeddings.create(model="fake", input=["a", long])
    assert failed.value.code == "context_length_exceeded"
    done = client.embed("fake", long, truncate=True)
    assert done.prompt_eval_count == 256
    assert np.array_equal(np.array(done.embeddings, np.float32), shared.llm.embed(long[:256]))


def test_a_text_ends_as_the_models_file_says(served: Served) -> None:
    """Models that are trained to embed often read a text by the token that ends it."""
    client = served.ollama()
    client.embed("fake", "abc")
    llm = served.llm
    llm.tokenizer.add_eos = True
    end = llm.tokenizer.eos
    assert llm.text_prompt("abc") == [*b"abc", end]
    for text, ids in (("abc", [*b"abc", end]), ("x" * 300, [*b"x" * 255, end])):
        done = client.embed("fake", text, truncate=True)
        assert done.prompt_eval_count == len(ids)
        assert np.array_equal(np.array(done.embeddings, np.float32), llm.embed([ids]))
    body: dict[str, Any] = {"content": "abc"}
    assert served.post("/tokenize", body).json() == {"tokens": [*b"abc"]}
    assert served.post("/tokenize", {**body, "add_special": True}).json()["tokens"][-1] == end


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/embeddings", {}, "input"),
        ("/v1/embeddings", {"input": []}, "input"),
        ("/v1/embeddings", {"input": ["a", 3]}, "input"),
        ("/v1/embeddings", {"input": ""}, "text 1"),
        ("/v1/embeddings", {"input": [[999]]}, "999"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ("/v1/embeddings", {"input": "a", "dimensions": 0}, "dimensions"),
        ("/v1/embeddings", {"input": "a", "pooling": "cls"}, "pooling"),
        ("/v1/embeddings", {"input": "a", "task": "search"}, "task"),
        ("/api/embed", {"input": "a", "options": {"num_gpu": 1}}, "num_gpu"),
        ("/api/embed", {"input": "a", "options": {"num_ctx": 9999}}, "num_ctx"),
        ("/api/embed", {"input": "a", "keep_alive": "soon"}, "keep_alive"),
        ("/api/embeddings", {"input": "a"}, "input"),
    ],
)
def test_what_is_not_honoured_is_named(
    shared: Served, path: str, body: dict[str, Any], field: str
) -> None:
    answer = shared.post(path, {"model": "fake", **body})
    assert answer.status_code == 400
    assert field in str(answer.json()["error"])


def test_a_client_that_leaves_ends_it() -> None:
    with serving(lambda _: make(says("x"), kind=Slow)) as served:
        body = b'{"model": "fake", "input": [' + b",".join([b'"%s"' % (b"a" * 200)] * 200) + b"]}"
        with served.socket() as client:
            head = f"POST /api/embed HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}"
            client.sendall(f"{head}\r\n\r\n".encode() + body)
            wait_for(lambda: bool(served.made) and served.llm.usage().steps > 3)
        wait_for(lambda: served.server.in_flight == 0)
        steps = served.llm.usage().steps
        assert steps < 1200  # all would be 1250
        time.sleep(0.05)
        assert served.llm.usage().steps == steps
        assert served.busy_pages() == 0


def test_too_many_at_once_are_told_to_wait() -> None:
    with serving(max_requests=1) as served:
        served.server.in_flight = 1
        assert served.post("/v1/embeddings", {"input": "a"}).status_code == 503
        served.server.in_flight = 0
        assert served.post("/v1/embeddings", {"input": "a"}).status_code == 200


def test_metrics_count_their_tokens(served: Served) -> None:
    served.post("/v1/embeddings", {"input": "abc"})
    assert "llamacpp:prompt_tokens_total 3\n" in served.get("/metrics").text
