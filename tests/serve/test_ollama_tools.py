"""Tools, thoughts and the form of answers, by Ollama's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.engine.test_chat import CALL, TOOLS
from tests.serve.served import Served
from tests.serve.test_tools import calling
from tests.text.tool_templates import MISTRAL, THINKING

from satchel.serve.ollama_messages import messages_of

ASKED: list[Any] = [{"role": "user", "content": "Weather?"}]
GREEDY: dict[str, Any] = {"temperature": 0}


@pytest.fixture(scope="module")
def caller() -> Iterator[Served]:
    """A server whose model wants to know the weather."""
    with calling(f"Let me see.\n{CALL}") as running:
        yield running


def test_a_call_and_its_result(caller: Served) -> None:
    client = caller.ollama()
    done = client.chat("fake", ASKED, tools=TOOLS, options=GREEDY)
    (call,) = done.message.tool_calls or []
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Köln"})
    assert (done.message.content, done.done_reason) == ("Let me see.", "stop")
    result = {"role": "tool", "content": "rain", "tool_name": "weather"}
    again = client.chat("fake", [*ASKED, done.message, result], tools=TOOLS, options=GREEDY)
    assert (again.prompt_eval_count or 0) > (done.prompt_eval_count or 0) + 50


def test_a_streamed_call_comes_whole(caller: Served) -> None:
    *parts, last = caller.ollama().chat("fake", ASKED, tools=TOOLS, options=GREEDY, stream=True)
    calls = [call for part in parts for call in part.message.tool_calls or []]
    assert [call.function.arguments for call in calls] == [{"city": "Köln"}]
    assert "".join(part.message.content or "" for part in parts) == "Let me see."
    assert last.done


def test_results_take_the_ids_of_their_calls() -> None:
    calls = [{"function": {"name": name, "arguments": {}}} for name in "fg"]
    results = [{"role": "tool", "content": text} for text in "12"]
    given: list[Any] = [*ASKED, {"role": "assistant", "tool_calls": calls}, *results]
    _, asked, one, two = messages_of(given)
    assert [call["id"] for call in asked["tool_calls"]] == [
        one["tool_call_id"], two["tool_call_id"],
    ]  # fmt: skip
    with calling("Hi", MISTRAL) as served:  # whose template insists on ids
        body = {"model": "fake", "messages": given, "tools": TOOLS, "stream": False}
        assert served.post("/api/chat", body).status_code == 200


def test_thoughts() -> None:
    with calling("<think>\nHm.</think>\n\nYes.", THINKING) as served:
        client = served.ollama()
        done = client.chat("fake", ASKED, options=GREEDY)
        assert (done.message.thinking, done.message.content) == ("Hm.", "Yes.")
        parts = list(client.chat("fake", ASKED, options=GREEDY, stream=True, think=True))
        assert "".join(part.message.thinking or "" for part in parts) == "Hm."
        assert client.generate("fake", "?", options=GREEDY).thinking == "Hm."
        plain = client.chat("fake", ASKED, options={**GREEDY, "num_predict": 1}, think=False)
        assert plain.message.thinking is None


def test_what_cannot_be_is_named(caller: Served, shared: Served) -> None:
    body = {"model": "fake", "messages": ASKED}
    for served, fields, word in (
        (caller, {"think": True}, "think: this model has no thoughts"),
        (caller, {"format": {"uniqueItems": True}}, "uniqueItems"),
        (caller, {"messages": [{**ASKED[0], "tool_name": "f"}]}, "messages[0].tool_name"),
        (shared, {"tools": TOOLS}, "tools: the model's template has no place"),
    ):
        answer = served.post("/api/chat", {**body, **fields})
        assert (answer.status_code, word in answer.json()["error"]) == (400, True), answer.text


def test_the_form_of_an_answer(caller: Served) -> None:
    client = caller.ollama()
    done = client.chat("fake", ASKED, format={"const": {"a": 1}}, options=GREEDY)
    assert json.loads(done.message.content or "") == {"a": 1}
    found = client.generate("fake", "Hi", format={"enum": ["x"]}, options=GREEDY)
    assert found.response == '"x"'
