"""Tools, thoughts, probabilities and forms of answers, by OpenAI's client."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pydantic
import pytest
from tests.engine.test_chat import CALL, CITIES, FIXED, ROOMY, TOOLS
from tests.serve.served import Served, serving
from tests.test_api import make, says
from tests.text.tool_templates import HERMES, THINKING

import satchel
from satchel.api import LLM

PATH = "/v1/chat/completions"
ASKED: list[Any] = [{"role": "user", "content": "Weather?"}]


@contextmanager
def calling(text: str, template: str = HERMES, **settings: Any) -> Generator[Served]:
    def load(_: str) -> LLM:
        return make(says(text), template=template, **ROOMY)

    with serving(load, **settings) as running:
        yield running


@pytest.fixture(scope="module")
def caller() -> Iterator[Served]:
    """A server whose model wants to know the weather."""
    with calling(f"Let me see.\n{CALL}") as running:
        yield running


def chat(served: Served, **fields: Any) -> Any:
    fields = {"model": "fake", "messages": ASKED, "temperature": 0, "tools": TOOLS, **fields}
    return served.openai().chat.completions.create(**fields)


def test_a_call(caller: Served) -> None:
    (choice,) = chat(caller).choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Let me see.")
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Köln"}
    assert len(call.id) == 9


def test_a_streamed_call(caller: Served) -> None:
    chunks = [chunk.choices[0] for chunk in chat(caller, stream=True)]
    assert "".join(chunk.delta.content or "" for chunk in chunks) == "Let me see."
    deltas = [call for chunk in chunks for call in chunk.delta.tool_calls or []]
    first, *rest = deltas
    assert (first.index, first.type, first.function.name) == (0, "function", "weather")
    assert [(one.index, one.id, one.function.name) for one in rest] == [(0, None, None)] * len(rest)
    assert json.loads("".join(one.function.arguments for one in deltas)) == {"city": "Köln"}
    assert len(rest) > 5
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["tool_calls"]


def test_openais_own_reader_of_streams_puts_calls_together(caller: Served) -> None:
    with caller.openai().chat.completions.stream(
        model="fake", messages=ASKED, tools=TOOLS, temperature=0
    ) as stream:
        kinds = {event.type for event in stream}
        done = stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (call,) = done.choices[0].message.tool_calls or []
    assert json.loads(call.function.arguments) == {"city": "Köln"}


def test_results_go_back(caller: Served) -> None:
    message = chat(caller).choices[0].message
    (call,) = message.tool_calls
    said = [*ASKED, message.model_dump(), {"role": "tool", "tool_call_id": call.id,
            "content": [{"type": "text", "text": "rain"}]}]  # fmt: skip
    again = chat(caller, messages=said)
    assert again.usage.prompt_tokens_details.cached_tokens > 100
    prompt = caller.post("/apply-template", {"messages": said, "tools": TOOLS}).json()["prompt"]
    assert "<tool_response>rain</tool_response>" in prompt
    assert '{"name": "weather", "arguments": {"city": "Köln"}}' in prompt


def test_several_answers_each_have_their_calls(caller: Served) -> None:
    choices = chat(caller, n=3).choices
    ids = {choice.message.tool_calls[0].id for choice in choices}
    assert (len(choices), len(ids)) == (3, 3)


def test_a_call_cut_off_is_no_call(caller: Served) -> None:
    (choice,) = chat(caller, max_tokens=60).choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("length", None)
    assert choice.message.content.startswith("Let me see.\n<tool_call>")


def test_no_tools_no_calls(caller: Served) -> None:
    for fields in ({"tools": []}, {"tool_choice": "none"}):
        (choice,) = chat(caller, **fields).choices
        assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
        assert choice.message.content == f"Let me see.\n{CALL}"


def test_one_call_only() -> None:
    with calling(f"{CALL}\n{CALL}") as served:
        assert len(chat(served).choices[0].message.tool_calls) == 2
        (choice,) = chat(served, parallel_tool_calls=False).choices
        assert (len(choice.message.tool_calls), choice.finish_reason) == (1, "tool_calls")
        assert choice.message.content is None


def test_thoughts() -> None:
    with calling("<think>\nHm.</think>\n\nYes.", THINKING) as served:
        (choice,) = chat(served, tools=[]).choices
        assert (choice.message.reasoning_content, choice.message.content) == ("Hm.", "Yes.")
        chunks = [chunk.choices[0].delta for chunk in chat(served, tools=[], stream=True)]
        thought = "".join(getattr(delta, "reasoning_content", None) or "" for delta in chunks)
        assert (thought, "".join(delta.content or "" for delta in chunks)) == ("Hm.", "Yes.")
        said = [*ASKED, choice.message.model_dump(), *ASKED]
        kwargs = {"chat_template_kwargs": {"enable_thinking": False}}
        prompt = served.post("/apply-template", {"messages": said, **kwargs}).json()["prompt"]
        assert prompt.endswith("</think>\n\n")


def test_probabilities_of_a_chat(caller: Served) -> None:
    fields: dict[str, Any] = {"tools": [], "logprobs": True, "top_logprobs": 2, "max_tokens": 12}
    (choice,) = chat(caller, **fields).choices
    content = choice.logprobs.content
    assert "".join(one.token for one in content) == choice.message.content == "Let me see.\n"
    assert [one.bytes for one in content] == [[byte] for byte in b"Let me see.\n"]
    assert all(one.logprob <= 0 and len(one.top_logprobs) == 2 for one in content)
    assert content[0].top_logprobs[0].token == "L"
    assert math.isclose(content[0].top_logprobs[0].logprob, content[0].logprob)
    chunks = [chunk.choices[0] for chunk in chat(caller, **fields, stream=True)]
    streamed = [one for chunk in chunks if chunk.logprobs for one in chunk.logprobs.content]
    assert streamed == content
    bare = chat(caller, tools=[], logprobs=True).choices[0].logprobs.content
    assert {len(one.top_logprobs) for one in bare} == {0}
    assert len(bare) == len(f"Let me see.\n{CALL}".encode())  # without the end


def test_probabilities_of_a_completion(caller: Served) -> None:
    create: Callable[..., Any] = caller.openai().completions.create
    fields: dict[str, Any] = {"model": "fake", "prompt": "Say:", "temperature": 0, "logprobs": 1}
    found = create(**fields).choices[0].logprobs
    text = f"Let me see.\n{CALL}"
    assert len(found.tokens) == len(text.encode()) == len(found.token_logprobs)
    places = [n for n, letter in enumerate(text) for _ in letter.encode()]
    assert found.text_offset[:60] == places[:60]
    assert found.top_logprobs[0] == {"L": found.token_logprobs[0]}
    chunks = [c.choices[0].logprobs for c in create(**fields, stream=True) if c.choices[0].logprobs]
    assert [place for c in chunks for place in c.text_offset] == found.text_offset
    assert [token for c in chunks for token in c.tokens] == found.tokens


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"tools": [{"type": "web_search"}]}, "bad_option", "tools[0].type"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
         "bad_option", "tools[0].function.parameters"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "bad_option", "tool_choice"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "bad_option", "tool_choice"),
        ({"tool_choice": "required"}, "bad_option", "tool_choice"),
        ({"top_logprobs": 2}, "bad_option", "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "bad_option", "top_logprobs"),
        ({"chat_template_kwargs": {"messages": 5}}, "bad_option", "chat_template_kwargs"),
        ({"response_format": {"type": "json_schema"}}, "bad_option", "response_format.json_schema"),
        ({"response_format": {"type": "text", "schema": {}}}, "bad_option",
         "response_format.schema"),
        ({"response_format": {"type": "json_object"}, "grammar": "x"}, "bad_option",
         "response_format"),
        ({"messages": [{"role": "user", "content": "x", "tool_calls": [
            {"function": {"name": "f", "arguments": "{}"}}]}]}, "unsupported",
         "messages[0].tool_calls"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "bad_option",
         "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant"}]}, "bad_option", "messages[0].content"),
        ({"messages": [*ASKED, {"role": "assistant", "tool_calls": [
            {"function": {"name": "f", "arguments": "{"}}]}]}, "bad_option", "messages"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_named(
    caller: Served, fields: dict[str, Any], code: str, param: str
) -> None:
    answer = caller.post(PATH, {"messages": ASKED, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, code, param)


def test_a_model_without_tools_says_so(shared: Served) -> None:
    answer = shared.post(PATH, {"messages": ASKED, "tools": TOOLS})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (400, "unsupported", "tools")
    assert "has no place for them" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_forced_call(stream: bool) -> None:
    with calling("I would rather not.") as served:
        choice = {"type": "function", "function": {"name": "weather"}}
        fields: dict[str, Any] = {
            "tools": FIXED,
            "tool_choice": choice,
            "temperature": 1,
            "seed": 5,
        }
        if stream:
            chunks = [c.choices[0] for c in chat(served, **fields, stream=True)]
            calls = [call for c in chunks for call in c.delta.tool_calls or []]
            arguments = "".join(call.function.arguments for call in calls)
            assert chunks[-1].finish_reason == "tool_calls"
        else:
            (call, *_) = chat(served, **fields).choices[0].message.tool_calls
            arguments = call.function.arguments
        assert json.loads(arguments.partition("}")[0] + "}")["city"] in CITIES


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response_format": {"type": "json_schema", "json_schema": {
            "name": "x", "strict": True, "schema": {"const": {"a": None}}}}}, '{"a": null}'),
        ({"response_format": {"type": "json_object", "schema": {"const": {"b": 1}}}}, '{"b": 1}'),
        ({"json_schema": {"enum": ["q"]}}, '"q"'),
        ({"grammar": 'root ::= "x" | "xy"'}, "xy"),
        ({"regex": "[0-9]{3}0"}, None),
        ({"choice": ["no", "yes"]}, "yes"),
    ],
)  # fmt: skip
def test_the_form_of_an_answer(caller: Served, fields: dict[str, Any], said: str | None) -> None:
    for path, body in ((PATH, {"messages": ASKED}), ("/v1/completions", {"prompt": "Say:"})):
        if path != PATH and "response_format" in fields:
            continue
        answer = caller.post(path, {**body, **fields, "seed": 4, "logit_bias": {"121": 50}}).json()
        (choice,) = answer["choices"]
        text = choice["message"]["content"] if path == PATH else choice["text"]
        assert choice["finish_reason"] == "stop"
        assert text == said or (said is None and len(text) == 4)


class City(pydantic.BaseModel):
    """A city."""

    name: Literal["Köln", "Rom"]
    size: int = pydantic.Field(ge=1, le=9)
    tags: list[Literal["old"]] = pydantic.Field(max_length=1)


def test_classes_as_forms_and_as_tools() -> None:
    with calling("No.") as served:
        client = served.openai()
        fields: dict[str, Any] = {"model": "fake", "messages": ASKED}
        done = client.chat.completions.parse(**fields, response_format=City)
        assert isinstance(done.choices[0].message.parsed, City)
        assert isinstance(
            client.responses.parse(model="fake", input="x", text_format=City).output_parsed, City
        )
        fields |= {"tools": [openai.pydantic_function_tool(City)], "parallel_tool_calls": False}
        assert chat(served, **fields).choices[0].message.content == "No."  # strict, but free
        fields["tool_choice"] = "required"
        (call,) = client.chat.completions.parse(**fields).choices[0].message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, City)
        arguments = ["", "", ""]
        for chunk in client.chat.completions.create(**fields, n=3, stream=True):
            for choice in chunk.choices:
                for delta in choice.delta.tool_calls or []:
                    arguments[choice.index] += delta.function.arguments
        assert [City.model_validate_json(text).size > 0 for text in arguments] == [True] * 3


def test_a_form_that_cannot_be_kept_to_is_named(caller: Served) -> None:
    schema = {"type": "array", "uniqueItems": True}
    for fields, word in (
        ({"response_format": {"type": "json_object", "schema": schema}}, "uniqueItems"),
        ({"json_schema": schema}, "uniqueItems"),
        ({"json_schema": True, "ignore_eos": True}, "kept to with json_schema;"),
        ({"response_format": {"type": "json_object"}, "ignore_eos": True},
         "kept to with response_format;"),
        ({"grammar": "root ::= x"}, "grammar"),
        ({"regex": "("}, "regex"),
    ):  # fmt: skip
        answer = caller.post(PATH, {"messages": ASKED, **fields})
        assert answer.status_code == 400
        assert word in answer.json()["error"]["message"]
        named = "ignore_eos" if "ignore_eos" in fields else next(iter(fields))
        assert answer.json()["error"]["param"] == named
    form = {"type": "json_schema", "name": "x", "schema": schema}
    answer = caller.post("/v1/responses", {"input": "Hi", "text": {"format": form}})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "text.format")
    answer = caller.post("/api/chat", {"model": "fake", "messages": ASKED, "format": schema})
    assert (answer.status_code, answer.json()["error"][:8]) == (400, "format: ")
    tools = [
        {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": schema}}}}
    ]
    answer = caller.post(PATH, {"messages": ASKED, "tools": tools, "tool_choice": "required"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "tools")
    assert "uniqueItems" in answer.json()["error"]["message"]


def test_a_real_model_is_made_to_call(smollm2: Path) -> None:
    """SmolLM2 knows no tools; a grammar and another template have it call one all the same."""

    def load(reference: str) -> LLM:
        llm = satchel.load(reference, context=1024, threads=2, parallel=4)
        llm._speaker.template = HERMES
        return llm

    city = {"type": "string", "maxLength": 20}
    unit = {"enum": ["celsius", "fahrenheit"]}
    schema = {"type": "object", "properties": {"city": city, "unit": unit},
              "required": ["city", "unit"]}  # fmt: skip
    function = {"name": "get_weather", "description": "The weather", "parameters": schema}
    tools: list[Any] = [{"type": "function", "function": function}]
    with serving(load, [str(smollm2)]) as served:
        client = served.openai()
        fields: dict[str, Any] = {
            "model": client.models.list().data[0].id,
            "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
            "tools": tools, "tool_choice": "required", "temperature": 0,
            "parallel_tool_calls": False, "max_tokens": 100,
        }  # fmt: skip
        (choice,) = client.chat.completions.create(**fields).choices
        (call,) = choice.message.tool_calls or []
        assert (choice.finish_reason, call.function.name) == ("tool_calls", "get_weather")
        arguments = json.loads(call.function.arguments)
        jsonschema.validate(arguments, schema)
        assert "Paris" in arguments["city"]
        deltas = [
            one.function.arguments
            for chunk in client.chat.completions.create(**fields, stream=True)
            for one in chunk.choices[0].delta.tool_calls or []
        ]
        assert json.loads("".join(deltas)) == arguments
        result = {"role": "tool", "tool_call_id": call.id, "content": "15 degrees, rain"}
        fields["messages"] += [choice.message.model_dump(exclude_none=True), result]
        again = client.chat.completions.create(**{**fields, "tool_choice": "auto"})
        assert again.choices[0].message.content
        assert again.usage.prompt_tokens_details.cached_tokens > 50
