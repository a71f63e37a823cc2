"""Ollama's endpoints, by Ollama's client."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest
from tests.serve.served import SAYS, Served, serving, wait_for
from tests.text import templates
from tests.text.tool_templates import HERMES, THINKING

from satchel.base.errors import OptionError
from satchel.serve.durations import parse_duration
from satchel.serve.ollama_models import capabilities

HELLO = [{"role": "user", "content": "Hello"}]
GREEDY: dict[str, Any] = {"temperature": 0}


def test_a_chat(served: Served) -> None:
    done = served.ollama().chat("fake", HELLO, options=GREEDY)
    assert (done.message.role, done.message.content) == ("assistant", SAYS)
    assert (done.done, done.done_reason, done.model) == (True, "stop", "fake")
    assert done.eval_count == len(SAYS.encode()) + 1
    assert done.prompt_eval_count
    assert done.total_duration
    assert done.eval_duration
    assert done.total_duration > done.eval_duration


def test_a_streamed_chat(served: Served) -> None:
    *parts, last = served.ollama().chat("fake", HELLO, options=GREEDY, stream=True)
    assert "".join(part.message.content or "" for part in parts) == SAYS
    assert not any(part.done for part in parts)
    assert (last.done, last.message.content) == (True, "")


def test_streams_are_lines_of_json_and_the_default(served: Served) -> None:
    answer = served.post("/api/chat", {"model": "fake", "messages": HELLO})
    assert answer.headers["content-type"].startswith("application/x-ndjson")
    assert json.loads(answer.text.splitlines()[-1])["done"] is True


def test_generate_with_and_without_the_template(served: Served) -> None:
    client = served.ollama()
    assert client.generate("fake", "Hello", options=GREEDY).response == SAYS
    assert client.generate("fake", "Say:", raw=True, options=GREEDY).response == SAYS
    done = client.generate("fake", "Hi", system="Be brief.", options={**GREEDY, "num_predict": 4})
    assert (done.response, done.done_reason) == ("Grü", "length")
    assert done.prompt_eval_count == len(
        served.llm.tokenize(
            served.llm.apply_template([
                {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}
            ])
        )
    )  # fmt: skip
    *parts, _ = client.generate("fake", "Hello", stream=True, options={**GREEDY, "stop": ["\n"]})
    assert "".join(part.response for part in parts) == "Grüß dich, Welt."


def test_latest_is_no_other_model(served: Served) -> None:
    assert served.ollama().generate("fake:latest", "Hi", options=GREEDY).response == SAYS


def test_load_and_unload(served: Served) -> None:
    client = served.ollama()
    assert client.ps().models == []
    assert client.generate("fake").done_reason == "load"
    wait_for(lambda: "fake" in served.server.models.loaded)
    assert client.generate("fake", keep_alive=0).done_reason == "unload"
    wait_for(lambda: not served.server.models.loaded)
    n_loads = len(served.made)
    assert client.generate("fake", keep_alive=0).done_reason == "unload"
    assert len(served.made) == n_loads  # one that is not there is not brought to be let go


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/generate", {"prompt": "x", "format": "yaml"}, "format"),
        ("/api/generate", {"prompt": "x", "images": ["aGk="]}, "images"),
        ("/api/generate", {"prompt": "x", "options": {"num_gpu": 3}}, "num_gpu"),
        ("/api/generate", {"prompt": "x", "options": {"mirostat": 1}}, "mirostat"),
        ("/api/generate", {"prompt": "x", "options": {"num_ctx": 10**6}}, "num_ctx"),
        ("/api/generate", {"prompt": "x", "raw": True, "system": "s"}, "system"),
        ("/api/generate", {"prompt": "x", "keep_alive": "soon"}, "keep_alive"),
        ("/api/chat", {"messages": HELLO, "tools": [{"type": "function"}]}, "tools"),
        ("/api/chat", {"messages": HELLO, "think": True}, "think"),
        ("/api/chat", {"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
    ],
)
def test_what_is_not_honoured_is_named(
    shared: Served, path: str, body: dict[str, Any], field: str
) -> None:
    answer = shared.post(path, {"model": "fake", **body})
    assert answer.status_code == 400
    assert field in answer.json()["error"]


def test_how_likely_the_tokens_were(shared: Served) -> None:
    client = shared.ollama()
    whole = client.chat("fake", HELLO, options=GREEDY, logprobs=True, top_logprobs=2)
    assert whole.logprobs
    assert len(whole.logprobs) == len(SAYS.encode())
    assert whole.logprobs[0].token == "G"
    assert whole.logprobs[0].logprob == pytest.approx(0, abs=1e-3)
    assert whole.logprobs[0].top_logprobs
    assert next(iter(whole.logprobs[0].top_logprobs)).token == "G"
    parts = client.generate("fake", "Hello", options=GREEDY, stream=True, logprobs=True)
    found = [one for part in parts for one in part.logprobs or ()]
    assert [one.logprob for one in found] == [one.logprob for one in whole.logprobs]
    assert client.generate("fake", "Hello", options=GREEDY).logprobs is None
    with pytest.raises(ollama.ResponseError, match="top_logprobs: it needs logprobs"):
        client.generate("fake", "Hello", top_logprobs=2)


def test_errors_reach_the_client(shared: Served) -> None:
    with pytest.raises(ollama.ResponseError, match="there is no 'other'") as failed:
        shared.ollama().generate("other", "x")
    assert failed.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="leave no room") as failed:
        list(shared.ollama().generate("fake", "x" * 1000, stream=True))
    assert failed.value.status_code == 400


def test_models_that_are_here(real: Served) -> None:
    client = real.ollama()
    (model,) = client.list().models
    assert model.details
    assert (model.details.format, model.details.quantization_level) == ("gguf", "Q4_1")
    assert model.size == 98_362_432
    shown = client.show(str(model.model))
    assert shown.capabilities == ["completion"]
    assert shown.template
    assert "im_start" in shown.template
    assert shown.modelinfo
    assert shown.modelinfo["general.parameter_count"] > 130e6
    client.generate(str(model.model), keep_alive="10m")
    (loaded,) = client.ps().models
    assert (loaded.name, loaded.context_length) == (model.model, 1024)
    assert loaded.size
    assert loaded.size > 100e6
    done = client.chat(str(model.model), HELLO, options={**GREEDY, "num_predict": 8})
    assert done.message.content == real.llm.chat(HELLO, temperature=0, max_tokens=8).text


def test_what_a_model_can_do_by_its_template() -> None:
    def can(template: str) -> tuple[str, ...]:
        return capabilities(template, lambda _: False)

    assert can(templates.SMOLLM2) == ("completion",)
    assert can(HERMES) == ("completion", "tools")
    assert can("{% broken") == can("") == ("completion",)
    assert "thinking" in can(THINKING)


def test_pull_takes_no_paths(shared: Served) -> None:
    for name in ("/etc/passwd", "fake", "../x.gguf"):
        with pytest.raises(ollama.ResponseError, match="can't be pulled"):
            shared.ollama().pull(name)


def test_pull_finds_what_is_here(smollm2: Any) -> None:
    with serving() as served:
        assert served.ollama().pull("smollm2").status == "success"
        states = [part.status for part in served.ollama().pull("smollm2", stream=True)]
        assert states == ["pulling smollm2", "success"]


def test_version(shared: Served) -> None:
    assert shared.get("/api/version").json()["version"]


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("5m", 300),
        ("1h30m", 5400),
        ("250ms", 0.25),
        (30, 30),
        ("30", 30),
        ("-1m", None),
        (-1, None),
    ],
)
def test_durations(given: str | float, seconds: float | None) -> None:
    assert parse_duration(given) == seconds


@pytest.mark.parametrize("given", ["", "m", "5 m", "1e9", "5x", 1e10, float("inf"), "9" * 40])
def test_durations_that_are_none(given: str | float) -> None:
    with pytest.raises(OptionError, match="keep_alive"):
        parse_duration(given)
