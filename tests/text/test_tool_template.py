"""Templates tried out: which take tools, how they write calls, and what they would leave out."""

from __future__ import annotations

from typing import Any

import pytest
from tests.text import templates
from tests.text.tool_templates import HERMES, LFM2, OTHER, THINKING, WAYS

from satchel.base.errors import OptionError, TemplateError, UnsupportedError
from satchel.text import ChatTemplate
from satchel.text.answer import AnswerParser
from satchel.text.tool_template import ToolTemplate

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
ASKED = {"role": "user", "content": "Hi"}


def tool_template(source: str, *tokens: str) -> ToolTemplate:
    return ToolTemplate(ChatTemplate(source, "<s>", "</s>"), lambda text: text in tokens)


def called(arguments: Any, content: Any = None) -> list[dict[str, Any]]:
    call = {
        "id": "abcdefghi",
        "type": "function",
        "function": {"name": "f", "arguments": arguments},
    }
    return [
        ASKED,
        {"role": "assistant", "content": content, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "abcdefghi", "content": "7 apples"},
    ]


@pytest.mark.parametrize("way", WAYS)
def test_the_way_is_found(way: str) -> None:
    found = tool_template(WAYS[way]).convention
    assert found
    assert found.name == way


@pytest.mark.parametrize("way", WAYS)
def test_calls_and_results_are_written(way: str) -> None:
    template = tool_template(WAYS[way])
    as_object = template.render(called({"a": 1}), TOOLS)
    as_text = template.render(called('{"a": 1}'), TOOLS)
    assert as_object == as_text
    assert "7 apples" in as_text
    begin = len(template.render([ASKED], TOOLS))
    parser = AnswerParser(None, template.convention, ["f"])
    parser.push(as_text[begin:] if as_text[:begin] == template.render([ASKED], TOOLS) else as_text)
    assert [(call.name, call.arguments) for call in parser.calls][-1] == ("f", '{"a": 1}')


def test_a_template_without_a_place_for_tools_is_refused() -> None:
    for source in (templates.SMOLLM2, templates.GEMMA, templates.QWEN):
        with pytest.raises(UnsupportedError, match=r"^tools: the model's template has no place"):
            tool_template(source).render([ASKED], TOOLS)
    with pytest.raises(UnsupportedError, match=r"^tools: how this model writes its calls"):
        tool_template(OTHER).render([ASKED], TOOLS)


def test_what_a_template_would_leave_out_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="leaves out calls"):
        tool_template(templates.SMOLLM2).render(called({})[:2])
    with pytest.raises(UnsupportedError, match="leaves out the results"):
        tool_template(
            HERMES.replace("tool_response>' + message.content", "tool_response>'")
        ).render(called({}))


def test_arguments_go_in_as_the_template_takes_them() -> None:
    text = tool_template(OTHER).render(called({"a": "é"}, "So:")[:2])
    assert text.endswith('assistant: So:<calls>f {"a": "é"}</calls>\n')


def test_a_vocabulary_tells_where_a_template_does_not() -> None:
    silent = LFM2.replace("List of tools: <|tool_list_start|>", "").replace("<|tool_list_end|>", "")
    assert tool_template(silent).convention is None
    found = tool_template(silent, "<|tool_call_start|>").convention
    assert found
    assert found.name == "pythonic-marked"


@pytest.mark.parametrize(
    "calls",
    [
        5,
        ["f"],
        [{"function": {"name": 5}}],
        [{"function": {"name": "f", "arguments": "{"}}],
        [{"function": {"name": "f", "arguments": "[1]"}}],
    ],
)
def test_calls_that_are_none_are_named(calls: Any) -> None:
    messages = [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]
    with pytest.raises(OptionError, match="message 2"):
        tool_template(HERMES).render(messages)


def test_thoughts_and_further_names() -> None:
    template = tool_template(THINKING)
    assert template.thoughts
    assert template.render([ASKED]).endswith("<think>\n")
    assert template.render([ASKED], (), {"enable_thinking": False}).endswith("</think>\n\n")
    assert template.convention
    assert tool_template(HERMES).thoughts is None
    with pytest.raises(TemplateError):
        tool_template("{{ messages.nothing.at_all }}").render([ASKED])
