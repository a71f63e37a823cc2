"""/v1/responses, by OpenAI's client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.engine.test_chat import CALL, CITIES, FIXED
from tests.serve.served import SAYS, Served
from tests.serve.test_tools import calling
from tests.text.tool_templates import THINKING

from satchel.serve.response_items import messages_of_items
from satchel.serve.response_store import ResponseStore

PATH = "/v1/responses"
TOOLS: list[Any] = [
    {"type": "function", "strict": None, **tool["function"]}
    for tool in FIXED
]  # fmt: skip


@pytest.fixture(scope="module")
def caller() -> Iterator[Served]:
    """A server whose model wants to know the weather."""
    with calling(f"Let me see.\n{CALL}") as running:
        yield running


def create(served: Served, **fields: Any) -> Any:
    fields = {"model": "fake", "input": "Hello", "temperature": 0, **fields}
    return served.openai().responses.create(**fields)


def test_a_response(shared: Served) -> None:
    done = create(shared, instructions="Be brief.", metadata={"a": "b"})
    assert (done.status, done.output_text, done.object) == ("completed", SAYS, "response")
    (message,) = done.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert done.usage.output_tokens == len(SAYS.encode()) + 1
    assert done.usage.total_tokens == done.usage.input_tokens + done.usage.output_tokens
    assert (done.instructions, done.metadata) == ("Be brief.", {"a": "b"})
    assert done.id.startswith("resp_")
    assert shared.openai().responses.retrieve(done.id).output_text == SAYS


def test_limits_make_it_incomplete(shared: Served) -> None:
    done = create(shared, max_output_tokens=4)
    assert (done.status, done.output_text) == ("incomplete", "Grü")
    assert done.incomplete_details.reason == "max_output_tokens"


def test_the_events_of_a_message(shared: Served) -> None:
    events = list(create(shared, stream=True))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added",
        "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done",
        "response.completed",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert "".join(event.delta for event in events[4:-4]) == SAYS
    assert events[-4].text == events[-1].response.output_text == SAYS
    assert {event.item_id for event in events[3:-2]} == {events[-1].response.output[0].id}
    assert events[0].response.status == "in_progress"


def test_openais_own_reader_of_streams(shared: Served) -> None:
    with shared.openai().responses.stream(model="fake", input="Hello", temperature=0) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == SAYS


def test_a_stream_names_its_events(shared: Served) -> None:
    answer = shared.post(PATH, {"input": "Hello", "stream": True})
    blocks = answer.text.strip().split("\n\n")
    for block in blocks:
        name, data = block.split("\n")
        assert name.removeprefix("event: ") == json.loads(data.removeprefix("data: "))["type"]


def test_one_follows_on_another(shared: Served) -> None:
    first = create(shared, instructions="Be brief.")
    second = create(shared, previous_response_id=first.id, input="More")
    assert second.previous_response_id == first.id
    whole = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": SAYS},
             {"role": "user", "content": "More"}]  # fmt: skip
    assert second.usage.input_tokens == create(shared, input=whole).usage.input_tokens
    forgotten = create(shared, store=False)
    for name in (forgotten.id, "resp_x"):
        with pytest.raises(openai.BadRequestError) as failed:
            create(shared, previous_response_id=name)
        assert (failed.value.code, failed.value.param) == (
            "response_not_found", "previous_response_id",
        )  # fmt: skip
    shared.openai().responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        shared.openai().responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        shared.openai().responses.delete(first.id)


def test_a_call_and_its_result(caller: Served) -> None:
    done = create(caller, tools=TOOLS)
    message, call = done.output
    assert (message.content[0].text, call.type, call.name) == (
        "Let me see.", "function_call", "weather",
    )  # fmt: skip
    assert (json.loads(call.arguments), call.status) == ({"city": "Köln"}, "completed")
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    again = create(caller, previous_response_id=done.id, input=[result], tools=TOOLS)
    asked: Any = {"role": "user", "content": "Hello"}
    echoed = [item.model_dump(exclude_none=True) for item in done.output]
    spelled = create(caller, input=[asked, *echoed, result], tools=TOOLS)
    assert again.usage.input_tokens == spelled.usage.input_tokens


def test_the_events_of_a_call(caller: Served) -> None:
    events = list(create(caller, tools=TOOLS, stream=True))
    deltas = [e for e in events if e.type == "response.function_call_arguments.delta"]
    assert json.loads("".join(event.delta for event in deltas)) == {"city": "Köln"}
    (done,) = [e for e in events if e.type == "response.function_call_arguments.done"]
    assert json.loads(done.arguments) == {"city": "Köln"}
    items = [event.item.type for event in events if event.type == "response.output_item.done"]
    assert items == ["message", "function_call"]
    added = [event.output_index for event in events if event.type == "response.output_item.added"]
    assert added == [0, 1]
    assert [item.type for item in events[-1].response.output] == items


def test_a_call_cut_off_is_no_call(caller: Served) -> None:
    done = create(caller, tools=TOOLS, max_output_tokens=60)
    assert [item.type for item in done.output] == ["message"] * len(done.output)
    assert done.output_text.startswith("Let me see.")
    assert "<tool_call>" in done.output_text
    kinds = [event.type for event in create(caller, tools=TOOLS, max_output_tokens=60, stream=True)]
    assert kinds[-1] == "response.incomplete"


def test_a_forced_call(caller: Served) -> None:
    choice: Any = {"type": "function", "name": "weather"}
    done = create(caller, tools=TOOLS, tool_choice=choice, temperature=1, parallel_tool_calls=False)
    (call,) = done.output
    assert json.loads(call.arguments)["city"] in CITIES


def test_thoughts_are_an_item_of_their_own() -> None:
    with calling("<think>\nHm.</think>\n\nYes.", THINKING) as served:
        done = create(served)
        thought, message = done.output
        assert (thought.type, thought.content[0].text) == ("reasoning", "Hm.")
        assert message.content[0].text == "Yes."
        assert done.usage.output_tokens_details.reasoning_tokens > 0
        kinds = [event.type for event in create(served, stream=True)]
        assert "response.reasoning_text.delta" in kinds
        assert kinds.index("response.reasoning_text.done") < kinds.index(
            "response.output_text.delta"
        )
        again = create(served, input="So?", previous_response_id=done.id)
        assert again.output_text == "Yes."


def test_the_form_of_the_text(shared: Served) -> None:
    schema = {"const": {"a": None}}
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": schema, "strict": True}}
    assert json.loads(create(shared, text=form).output_text) == {"a": None}


def test_probabilities(shared: Served) -> None:
    done = create(shared, include=["message.output_text.logprobs"], top_logprobs=1)
    (part,) = done.output[0].content
    assert bytes(byte for one in part.logprobs for byte in one.bytes).decode() == SAYS
    assert len(part.logprobs[0].top_logprobs) == 1
    assert create(shared).output[0].content[0].logprobs == []


def test_items_are_messages() -> None:
    items: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hi"}]},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "So"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
    ]
    system, user, turn, result, a, b = messages_of_items(items)
    assert (system["role"], user["content"]) == ("system", "Hi")
    assert (turn["reasoning_content"], turn["content"]) == ("Hm", "So")
    assert [call["function"]["name"] for call in turn["tool_calls"]] == ["f", "g"]
    assert result == {"role": "tool", "tool_call_id": "1", "content": "x"}
    assert (a["content"], b["content"]) == ("a", "b")


def test_the_store_forgets_the_longest_unused() -> None:
    store = ResponseStore(most=2)
    for name in "ab":
        store.keep({"id": name}, [])
    assert store.find("a")
    store.keep({"id": "c"}, [])
    assert (store.find("b"), store.forget("b")) == (None, False)
    assert store.find("a")
    assert store.forget("c")
    small = ResponseStore(most_characters=100)
    for name in "xyz":
        small.keep({"id": name}, [{"content": "w" * 40}])
    assert [bool(small.find(name)) for name in "xyz"] == [False, False, True]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input[0].content[0].type"),
        ({"input": []}, "input"),
        ({"truncation": "auto"}, "truncation"),
        ({"background": True}, "background"),
        ({"reasoning": {"effort": "low"}}, "reasoning.effort"),
        ({"include": ["file_search_call.results"]}, "include[0]"),
        ({"conversation": "x"}, "conversation"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"stream_options": {}}, "stream_options"),
        ({"n": 2}, "n"),
    ],
)  # fmt: skip
def test_what_is_not_honoured_is_named(shared: Served, fields: dict[str, Any], param: str) -> None:
    answer = shared.post(PATH, {"input": "Hi", **fields})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text
