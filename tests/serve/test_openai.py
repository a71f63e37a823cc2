"""OpenAI's endpoints, by OpenAI's client."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
from tests.serve.served import SAYS, Served, serving
from tests.test_api import make

HELLO: list[Any] = [{"role": "user", "content": "Hello"}]
PLAIN = "Grüß dich, Welt."


def chat(served: Served, **fields: Any) -> Any:
    fields = {"model": "fake", "messages": HELLO, "temperature": 0, **fields}
    return served.openai().chat.completions.create(**fields)


def complete(served: Served, **fields: Any) -> Any:
    fields = {"model": "fake", "prompt": "Say:", "temperature": 0, **fields}
    return served.openai().completions.create(**fields)


def test_a_chat(served: Served) -> None:
    done = chat(served)
    (choice,) = done.choices
    assert (choice.message.role, choice.message.content) == ("assistant", SAYS)
    assert choice.finish_reason == "stop"
    assert (done.object, done.model) == ("chat.completion", "fake")
    n_prompt = len(served.llm.tokenize(served.llm.apply_template(HELLO)))
    assert done.usage.prompt_tokens == n_prompt
    assert done.usage.completion_tokens == len(SAYS.encode()) + 1  # with the end token
    assert done.usage.total_tokens == done.usage.prompt_tokens + done.usage.completion_tokens
    assert done.usage.prompt_tokens_details.cached_tokens == 0


def test_timings_are_those_of_llama_cpp(served: Served) -> None:
    found = chat(served).model_extra["timings"]
    assert set(found) == {
        "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second",
        "predicted_n", "predicted_ms", "predicted_per_token_ms", "predicted_per_second",
    }  # fmt: skip
    assert found["predicted_n"] == len(SAYS.encode()) + 1
    assert found["predicted_ms"] > 0 < found["prompt_ms"]


def test_a_chat_goes_on_where_it_was(served: Served) -> None:
    first = chat(served)
    longer = [*HELLO, {"role": "assistant", "content": SAYS}, {"role": "user", "content": "More"}]
    second = chat(served, messages=longer)
    known = first.usage.prompt_tokens + len(SAYS.encode()) + 1
    assert second.usage.prompt_tokens_details.cached_tokens in (known, known - 1)
    (session,) = served.get("/sessions").json()
    assert (session["n_requests"], session["is_processing"]) == (2, False)


def test_a_streamed_chat(served: Served) -> None:
    chunks = list(chat(served, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert parts[0].choices[0].delta.role == "assistant"
    assert "".join(part.choices[0].delta.content or "" for part in parts) == SAYS
    assert [p.choices[0].finish_reason for p in parts] == [None] * (len(parts) - 1) + ["stop"]
    assert last.choices == []
    assert last.usage.completion_tokens == len(SAYS.encode()) + 1
    assert last.model_extra["timings"]["predicted_n"] == last.usage.completion_tokens
    assert len({chunk.id for chunk in chunks}) == 1
    assert len(parts) > 10  # it came in pieces


def test_a_stream_ends_with_done_and_is_not_cached(served: Served) -> None:
    answer = served.post("/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-store"
    *chunks, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    last = json.loads(chunks[-1].removeprefix("data: "))
    assert last["choices"][0]["finish_reason"] == "stop"
    assert "timings" in last


def test_stop_strings_and_limits(served: Served) -> None:
    done = chat(served, stop=["\nUser:", "never"])
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == (PLAIN, "stop")
    done = chat(served, max_tokens=4)
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("Grü", "length")
    assert chat(served, max_completion_tokens=4).choices[0].message.content == "Grü"


def test_logit_bias_bans_a_token(served: Served) -> None:
    done = complete(served, max_tokens=1, logit_bias={str(ord("G")): -1e9})
    assert done.choices[0].text != "G"


def test_content_in_parts_and_the_developer(served: Served) -> None:
    said: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}],
        },
    ]
    assert chat(served, messages=said).choices[0].message.content == SAYS
    prompt = served.post("/apply-template", {"messages": said}).json()["prompt"]
    assert prompt.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<")


def test_several_answers_and_prompts(served: Served) -> None:
    done = complete(served, prompt=["Say:", "So? Say:"], n=2, stop=["\n"])
    assert [choice.index for choice in done.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in done.choices] == [PLAIN] * 4
    assert done.usage.prompt_tokens == len("Say:") + len("So? Say:")  # each of them once
    assert served.server.in_flight == 0


def test_each_of_several_answers_has_its_own_draw() -> None:
    with serving(lambda _: make()) as served:
        fields: dict[str, Any] = {"prompt": "x", "n": 3, "seed": 7, "temperature": 1.5,
                                  "max_tokens": 12,
                                  "extra_body": {"top_k": 0, "min_p": 0}}  # fmt: skip
        first, again = (complete(served, **fields).choices for _ in range(2))
        texts = [choice.text for choice in first]
        assert len(set(texts)) == 3
        assert texts == [choice.text for choice in again]


def test_prompts_of_tokens_and_echo(served: Served) -> None:
    assert complete(served, prompt=list(b"Say:")).choices[0].text == SAYS
    done = complete(served, prompt=[list(b"Say:")], echo=True, stop="\n")
    assert done.choices[0].text == "Say:" + PLAIN
    chunks = list(complete(served, echo=True, stop="\n", stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Say:" + PLAIN


def test_models(served: Served) -> None:
    assert [model.id for model in served.openai().models.list()] == ["fake"]
    assert served.openai().models.retrieve("fake").id == "fake"
    with pytest.raises(openai.NotFoundError, match="there is no 'other'"):
        served.openai().models.retrieve("other")
    with pytest.raises(openai.NotFoundError) as failed:
        chat(served, model="../../etc/passwd")
    assert failed.value.code == "model_not_found"


def test_tokenize_and_back(served: Served) -> None:
    text = "Grüß dich<|im_end|>"
    ids = served.post("/tokenize", {"content": text}).json()["tokens"]
    assert ids == served.llm.tokenize(text)
    assert served.post("/detokenize", {"tokens": ids}).json()["content"] == text
    pieces = served.post("/tokenize", {"content": "aü", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["a", [0xC3], [0xBC]]
    plain = served.post("/tokenize", {"content": "<|im_end|>", "parse_special": False})
    assert len(plain.json()["tokens"]) == 10
    assert served.post("/detokenize", {"tokens": [10**6]}).json()["error"]["code"] == "bad_text"


def test_a_real_model(real: Served) -> None:
    client = real.openai()
    said: list[Any] = [{"role": "user", "content": "Name three colours."}]
    (name,) = [model.id for model in client.models.list()]
    fields: dict[str, Any] = {
        "model": name, "messages": said, "temperature": 0, "max_tokens": 24
    }  # fmt: skip
    whole = client.chat.completions.create(**fields)
    alone = real.llm.chat(said, temperature=0, max_tokens=24)
    assert whole.choices[0].message.content == alone.text
    stream = client.chat.completions.create(**fields, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == alone.text
    assert client.chat.completions.create(**fields).usage.prompt_tokens_details.cached_tokens > 20
