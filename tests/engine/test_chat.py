"""Chats with tools and thoughts, on the fake model."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from tests.engine.fake import FakeModel
from tests.test_api import END, Slow, byte_letters, make, metadata, says
from tests.text.tool_templates import HERMES, LLAMA_3, MISTRAL, THINKING, WAYS

from satchel.api import LLM
from satchel.base.errors import ContextLengthError, OptionError, UnsupportedError
from satchel.text import load_tokenizer

GREEDY: dict[str, Any] = {"temperature": 0}
ROOMY: dict[str, Any] = {"context_length": 2048, "n_pages": 64, "max_batch": 512}
PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": PLACE}},
    {"type": "function", "function": {"name": "clock"}},
]
CITIES = ["Köln", "Rom"]
FIXED: list[Any] = [
    {"type": "function", "function": {"name": "weather", "parameters": {
        "properties": {"city": {"enum": CITIES}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "clock"}},
]  # fmt: skip
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}\n</tool_call>'


def model(text: str, template: str = HERMES, **options: Any) -> LLM:
    return make(says(text), template=template, **ROOMY, **options)


def test_a_call() -> None:
    with model(f"Let me see.\n{CALL}") as llm:
        done = llm.chat("Weather?", tools=TOOLS, **GREEDY)
        (call,) = done.tool_calls
        assert (done.text, call.name) == ("Let me see.", "weather")
        assert json.loads(call.arguments) == {"city": "Köln"}
        assert done.stats.finish_reason == "stop"
        pieces = list(llm.chat_stream("Weather?", tools=TOOLS, **GREEDY))
        deltas = [delta for piece in pieces for delta in piece.tool_calls]
        assert [delta.name for delta in deltas if delta.name] == ["weather"]
        assert "".join(delta.arguments for delta in deltas) == call.arguments
        assert len(deltas) > 10
        assert "".join(piece.text for piece in pieces) == done.text


def test_without_tools_nothing_is_taken_apart() -> None:
    with model(CALL) as llm:
        for options in ({}, {"tools": TOOLS, "tool_choice": "none"}, {"tools": []}):
            done = llm.chat("Weather?", **GREEDY, **options)
            assert (done.text, done.tool_calls) == (CALL, ())
        assert "<tools>" not in llm.apply_template("Weather?")


def test_results_go_back_and_a_session_remembers() -> None:
    with model(CALL) as llm:
        session = llm.session()
        (call,) = session.send("Weather?", tools=TOOLS, **GREEDY).tool_calls
        assert session.messages[-1]["tool_calls"][0]["id"] == call.id
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        again = session.send([result], tools=TOOLS, **GREEDY)
        assert again.stats.cached_tokens > 100
        text = llm.apply_template(session.messages)
        assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln"}}' in text
        assert "<tool_response>rain</tool_response>" in text


def test_one_call_ends_the_answer() -> None:
    one = '<tool_call>{"name": "clock"}</tool_call>'
    with make(says(f"{one}\n{one}" + "x" * 300), template=HERMES, kind=Slow, **ROOMY) as llm:
        assert len(llm.chat("?", tools=TOOLS, max_tokens=90, **GREEDY).tool_calls) == 2
        done = llm.chat("?", tools=TOOLS, parallel_tool_calls=False, **GREEDY)
        assert (len(done.tool_calls), done.text) == (1, "")
        assert done.stats.finish_reason == "stop"
        assert done.stats.generated_tokens < len(one) + 250


def test_a_call_that_is_cut_off_is_said() -> None:
    with model(CALL) as llm:
        done = llm.chat("?", tools=TOOLS, max_tokens=50, **GREEDY)
        assert (done.tool_calls, done.stats.finish_reason) == ((), "length")
        assert done.text == CALL.encode()[:50].decode()


def test_thoughts() -> None:
    with model("<think>\nHm.\n</think>\n\nYes.", THINKING.replace("<think>\\n' }}", "' }}")) as llm:
        done = llm.chat("?", **GREEDY)
        assert (done.reasoning, done.text) == ("Hm.", "Yes.")
    # in the prompt already: the model plays what comes after "assistant"
    with model(f"<think>\nHm.</think>{CALL}", THINKING) as llm:
        done = llm.chat("?", tools=TOOLS, **GREEDY)
        assert (done.reasoning, done.text, len(done.tool_calls)) == ("Hm.", "", 1)
        quick = llm.chat_prompt("?", chat_template_kwargs={"enable_thinking": False})
        assert llm.detokenize(quick.tokens).endswith("<think>\n\n</think>\n\n")
        assert not quick.is_thinking
        session = llm.session()
        session.send("?", **GREEDY)
        assert session.messages[-1]["reasoning_content"] == "Hm."


def special(reply: Callable[[Sequence[int]], int], template: str, *specials: str) -> LLM:
    """A model with special tokens, from number 259 on."""
    known = metadata()
    known["tokenizer.ggml.tokens"] = [
        *byte_letters(), "<|im_start|>", "<|im_end|>", "<|bos|>", *specials
    ]  # fmt: skip
    known["tokenizer.ggml.token_type"] = [1] * 256 + [3] * (3 + len(specials))
    fake = FakeModel(vocab_size=259 + len(specials), reply=reply, **ROOMY)
    return LLM(fake, load_tokenizer(known), template=template)


def plays(tokens: Sequence[int], n_prompt: int) -> Callable[[Sequence[int]], int]:
    return lambda history: tokens[min(len(history) - n_prompt, len(tokens) - 1)]


@pytest.mark.parametrize(
    ("template", "mark", "body"),
    [
        (MISTRAL, "[TOOL_CALLS]", '[{"name": "clock", "arguments": {}}]'),
        (LLAMA_3, "<|python_tag|>", '{"name": "clock", "parameters": {}}'),
        (HERMES, "<tool_call>", '{"name": "clock", "arguments": {}}'),
    ],
)
def test_special_tokens_that_mark_calls_are_seen(template: str, mark: str, body: str) -> None:
    said: list[int] = []
    where = [0]

    def reply(history: Sequence[int]) -> int:
        return said[min(len(history) - where[0], len(said) - 1)]

    with special(reply, template, mark) as llm:
        said[:] = [259, *body.encode(), END]
        assert llm.detokenize(said[:2]) == mark + body[0]
        where[0] = len(llm.chat_prompt("?", tools=TOOLS).tokens)
        (call,) = llm.chat("?", tools=TOOLS, **GREEDY).tool_calls
        assert (call.name, call.arguments) == ("clock", "{}")
        where[0] = len(llm.chat_prompt("?").tokens)
        assert llm.chat("?", **GREEDY).text == body  # as ever, where no tools are offered


@pytest.mark.parametrize(
    ("options", "says_what"),
    [
        ({"tools": "f"}, "tools: not a list"),
        ({"tools": [{"type": "function"}]}, "tools: number 0 is not of the form"),
        ({"tools": [*TOOLS, TOOLS[1]]}, "tools: there are two of the name clock"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": 5}}]},
         "tools: the parameters of f"),
        ({"tools": [{"type": "function", "function": {"name": "\ud800"}}]},
         "tools: number 0 can't be written as JSON"),
        ({"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": {1}}}}]},
         "tools: number 0 can't be written as JSON"),
        ({"tools": TOOLS, "tool_choice": "maybe"}, "tool_choice: not one of"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "x"}}},
         "tool_choice: there is no tool 'x'"),
        ({"tool_choice": "required"}, "tool_choice: there are no tools"),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls: 1 is neither"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs: messages"),
        ({"chat_template_kwargs": 5}, "chat_template_kwargs: not names"),
    ],
)  # fmt: skip
def test_options_that_make_no_sense_are_named(options: Any, says_what: str) -> None:
    with model("Hi") as llm, pytest.raises(OptionError) as failed:
        llm.chat("?", **options)
    assert str(failed.value).startswith(says_what)


def test_what_cannot_be_is_refused() -> None:
    with make(says("Hi")) as llm:
        with pytest.raises(UnsupportedError, match=r"^tools: "):
            llm.chat("?", tools=TOOLS)
        with pytest.raises(OptionError, match="max_tokens: it changes no prompt"):
            llm.chat_prompt("?", max_tokens=5)
        with pytest.raises(ContextLengthError, match="at least"):
            llm.chat("x" * 10_000)


def forced(**options: Any) -> Any:
    """Of a model that would say something else."""
    template = options.pop("template", HERMES)
    with model("I would rather not.", template) as llm:
        return llm.chat("?", tools=FIXED, parallel_tool_calls=False, **options)


@pytest.mark.parametrize("way", WAYS)
def test_a_call_is_forced_in_every_way(way: str) -> None:
    choice = {"type": "function", "function": {"name": "weather"}}
    done = forced(template=WAYS[way], tool_choice=choice, seed=1)
    (call,) = done.tool_calls
    assert (call.name, done.text, done.stats.finish_reason) == ("weather", "", "stop")
    assert json.loads(call.arguments)["city"] in CITIES
    done = forced(template=WAYS[way], tool_choice="required", seed=2)
    assert (len(done.tool_calls), done.text) == (1, "")


def test_a_forced_call_of_a_model_that_thinks() -> None:
    done = forced(template=THINKING, tool_choice="required", seed=3)
    assert (len(done.tool_calls), done.text, done.reasoning) == (1, "", "")


def test_a_forced_call_opened_by_a_special_token() -> None:
    with special(lambda _: ord("x"), MISTRAL, "[TOOL_CALLS]") as llm:
        prompt = llm.chat_prompt("?", tools=TOOLS, tool_choice="required")
        assert prompt.tokens[-1] == 259
        done = llm.chat("?", tools=FIXED, tool_choice="required", max_tokens=300, seed=4)
        assert done.tool_calls
        assert done.text == ""


def test_a_form_comes_after_the_thoughts_or_calls_instead() -> None:
    with model("<think>\nHm.</think>{", THINKING) as llm:
        done = llm.chat("?", json_schema={"const": {"a": 1}}, **GREEDY)
        assert (done.reasoning, done.text) == ("Hm.", '{"a": 1}')
    with model(CALL) as llm:
        done = llm.chat("?", tools=TOOLS, choice=["yes", "no"], **GREEDY)
        assert [call.name for call in done.tool_calls] == ["weather"]
    with model("yes") as llm:
        assert llm.chat("?", tools=TOOLS, choice=["yes", "no"], **GREEDY).text == "yes"
        with pytest.raises(OptionError, match=r"^choice: tool_choice forces"):
            llm.chat("?", tools=TOOLS, tool_choice="required", choice=["yes"])
        with pytest.raises(OptionError, match=r"^ignore_eos: it can't be kept to with tools"):
            llm.chat("?", tools=TOOLS, tool_choice="required", ignore_eos=True)
    with (
        special(lambda _: ord("x"), MISTRAL, "[TOOL_CALLS]") as llm,
        pytest.raises(UnsupportedError, match=r"^choice: .* where it may call"),
    ):
        llm.chat("?", tools=TOOLS, choice=["yes"])


def test_strict_tools() -> None:
    strict = [
        {"type": "function", "function": {**one["function"], "strict": True}} for one in FIXED
    ]
    with model(CALL.replace("Köln", "Bonn")) as llm:
        assert json.loads(llm.chat("?", tools=FIXED, **GREEDY).tool_calls[0].arguments) == {
            "city": "Bonn"
        }
        (call,) = llm.chat("?", tools=strict, **GREEDY).tool_calls
        assert json.loads(call.arguments)["city"] in CITIES
    with model("No.") as llm:
        done = llm.chat("?", tools=strict, **GREEDY)
        assert (done.text, done.tool_calls) == ("No.", ())
    with (
        special(lambda _: ord("x"), MISTRAL, "[TOOL_CALLS]") as llm,
        pytest.raises(UnsupportedError, match=r"^tools: strict: .* force a call"),
    ):
        llm.chat("?", tools=strict)
