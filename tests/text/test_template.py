"""Chat templates: what they print, what they refuse, and what they can't do to us."""

from __future__ import annotations

import datetime
import subprocess
import sys
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tests.text.templates import GEMMA, LLAMA_3, MISTRAL, QWEN, SMOLLM2, TEMPLATES
from tests.text.tiny import TINY

from satchel.base.errors import TemplateError
from satchel.base.options import child_environment
from satchel.text import ChatTemplate, encode_chat, load_tokenizer

Messages = list[dict[str, Any]]
TALK: Messages = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": " Hi "},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello"},
    {"role": "user", "content": "Why?"},
]


def render(source: str, messages: Messages | None = None, **names: Any) -> str:
    return ChatTemplate(source, "<s>", "</s>").render(messages or [], **names)


def test_smollm2() -> None:
    assert render(SMOLLM2, TALK[1:2]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(SMOLLM2, TALK[:2], add_generation_prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n Hi <|im_end|>\n"
    )


def test_llama_3() -> None:
    head = "<s><|start_header_id|>system<|end_header_id|>\n\nToday: "
    assert render(LLAMA_3, TALK[:2], date_string="1 May") == (
        head + "1 May\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    call = {"name": "größe", "arguments": {"a": "<b> & 'c'", "n": 1}}
    asks = {"role": "assistant", "tool_calls": [{"function": call}]}
    tools = [{"name": "f"}]
    assert render(LLAMA_3, [asks], tools=tools, add_generation_prompt=False) == (
        head + '26 Jul 2024\n\nTools:\n\n{\n    "name": "f"\n}\n\n<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
        '{"name": "größe", "arguments": {"a": "<b> & \'c\'", "n": 1}}<|eot_id|>'
    )
    with pytest.raises(TemplateError, match="refuses: one tool call at a time"):
        render(LLAMA_3, [{"role": "assistant", "tool_calls": []}])


def test_mistral() -> None:
    assert render(MISTRAL, TALK) == (
        "<s>[INST]  Hi [/INST] <think>\nhm\n</think>\n\nHello</s>[INST] Be brief.\n\nWhy?[/INST]"
    )
    with pytest.raises(TemplateError, match="roles must alternate"):
        render(MISTRAL, [TALK[2]])


def test_qwen() -> None:
    assert render(QWEN, TALK[1:], enable_thinking=False) == (
        "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
    )
    assert render(QWEN, TALK[1:3], add_generation_prompt=False).endswith(
        "assistant\n<think>\nhm\n</think>\nHello<|im_end|>\n"
    )


def test_gemma() -> None:
    text = [{"type": "text", "text": " x "}, {"type": "text", "text": "y"}]
    assert render(GEMMA, [TALK[0], {"role": "user", "content": text}]) == (
        "<s><start_of_turn>user\nBe brief.\n\nxy<end_of_turn>\n<start_of_turn>model\n"
    )


TEXT = st.text(max_size=20)
TURN = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT})


@pytest.mark.slow
@given(
    name=st.sampled_from(sorted(TEMPLATES)),
    messages=st.lists(TURN, min_size=1, max_size=5),
    system=st.none() | TEXT,
    prompt=st.booleans(),
)
def test_counting_changes_nothing(
    name: str, messages: Messages, system: str | None, prompt: bool
) -> None:
    """Ours prints what Jinja's own sandbox prints with the settings of transformers."""
    if system is not None:
        messages = [{"role": "system", "content": system}, *messages]

    def refuse(message: str) -> None:
        raise ValueError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    names = {"add_generation_prompt": prompt, "tools": None, "bos_token": "<s>"}
    try:
        expected = environment.from_string(TEMPLATES[name]).render(
            messages=messages, eos_token="</s>", **names
        )
    except ValueError:
        with pytest.raises(TemplateError, match="refuses"):
            render(TEMPLATES[name], messages, add_generation_prompt=prompt)
    else:
        assert render(TEMPLATES[name], messages, add_generation_prompt=prompt) == expected


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("a{% generation %}b{{ 1 }}{% endgeneration %}c", "ab1c"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}{% if i == 3 %}"
         "{% break %}{% endif %}{% endfor %}", "013"),
        ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        ("{{ missing }}|{{ missing is defined }}|{{ messages[0].nothing or 'none' }}",
         "|False|none"),
        ("{{ {'é': '<b>\\'', 'a': [1, none, true, 2.5]} | tojson }}",
         '{"é": "<b>\'", "a": [1, null, true, 2.5]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}",
         '{"a":2,"b":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{{ ['a', 'b'] | join('-') }}{{ '-'.join(('c', 'd')) }}{{ '.'.join('xy') }}", "a-bc-dx.y"),
        ("{{ 'aXbX' | replace('X', '--') }}{{ 'aXbX'.replace('X', '', 1) }}", "a--b--abX"),
        ("{{ 'x' * 3 ~ 2 ** 10 ~ 7 // 2 ~ '%s-%02d' % ('a', 5) }}", "xxx10243a-05"),
        ("{{ '{}/{:>3}'.format('a', 'b') }}{{ '%s' | format('c') }}", "a/  bc"),
        ("{{ messages | map(attribute='role') | list }}{{ [1, 2, 3] | sum }}", "['user']6"),
        ("{% set x %}b{{ 'c' }}{% endset %}{% filter upper %}a{{ x }}{% endfilter %}", "ABC"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{% set a, b = 1, 2 %}{{ b }}",
         "a12"),
        ("{% macro m(a, b=[1]) %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}"
         "{% call m('x') %}y{% endcall %}", "x[1]y"),
        ("{% for a in [1, [2]] recursive %}{{ loop(a) if a is iterable else a }}{% endfor %}",
         "12"),
        ("{{ 'abc'[::-1] }}{{ [1, 2, 3][1:] }}{{ 'x' in ['x'] }}{{ 'abc' | center(5) }}|",
         "cba[2, 3]True abc |"),
    ],
)  # fmt: skip
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source, [{"role": "user"}]) == text


def test_the_time_now() -> None:
    assert render("{{ strftime_now('%Y') }}") in {
        str(datetime.datetime.now().year + late) for late in (0, -1)
    }


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("", "has no chat template"),
        (" \n", "has no chat template"),
        ("{% if %}", "broken in line 1"),
        ("\n\n{{ 'a }}", "broken in line 3"),
        ("{% nonesuch %}", "broken in line 1: Encountered unknown tag"),
        ("{{ 1 | nonesuch }}", "broken in line 1: No filter named"),
        ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "broken"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "broken"),
        ("x" * (1 << 20), "longer than"),
        ("{{ missing.role }}", "fails: 'missing' is undefined"),
        ("{{ messages[0]['content'] }}", "fails: .* has no element 0"),
        ("{{ 1 + 'a' }}", "fails: unsupported operand"),
        ("{{ 1 / 0 }}", "fails: division by zero"),
        ("{{ raise_exception('no\nsuch\trole') }}", "refuses: no such role$"),
        ("{% include 'x' %}", "fails: no loader"),
        ("{{ missing | tojson }}", "fails: .* not JSON serializable"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 2 ** 8000 * 2 ** 8000 }}", "fails: Exceeds the limit"),
    ],
)
def test_what_is_wrong_with_a_template(source: str, says: str) -> None:
    with pytest.raises(TemplateError, match=says) as caught:
        render(source)
    assert "\n" not in str(caught.value)


SET = "{% set n = namespace(x='a', l=[1]) %}"
REFUSED = r"takes|makes|computes|asks|unsafe|no numbers|fails: Range too big"
LOOP = "{% for i in range(100000) %}"


@pytest.mark.slow
@pytest.mark.parametrize(
    "source",
    [
        LOOP * 2 + "{% endfor %}" * 2,
        LOOP * 2 + "x{% endfor %}" * 2,
        LOOP + "{{ range(100000) | sum }}{% endfor %}",
        LOOP + "{{ range(100000) | select('in', []) | list }}{% endfor %}",
        "{{ range(100000) | map('center', 900) | map('list') | list }}",
        "{% macro f() %}" + LOOP + "{{ i }}{% endfor %}{% endmacro %}" + LOOP + "{{ f() }}"
        "{% endfor %}",
        "{{ range(1000000) }}",
        SET + LOOP + "{% set n.x = n.x ~ n.x %}{% endfor %}",
        SET + LOOP + "{% set n.x = n.x + n.x %}{% endfor %}",
        SET + LOOP + "{% set n.x = [n.x, n.x] | join %}{% endfor %}",
        SET + LOOP + "{% set n.x = n.x.replace('a', 'aa') %}{% endfor %}",
        SET + LOOP + "{% set n.x = n.x | replace('a', 'aa') %}{% endfor %}",
        SET + LOOP + "{% set n.x = n.x | escape ~ '&' %}{% set n.x = n.x | escape %}{% endfor %}",
        SET + LOOP + "{% set n.l = [n.l, n.l] %}{% endfor %}{{ n.l }}",
        SET + LOOP + "{% set n.l = (n.l, n.l) %}{% endfor %}{{ n.l | tojson }}",
        SET + LOOP + "{% set n.l = {'a': n.l, 'b': n.l} %}{% endfor %}{{ n.l == n.l }}",
        SET + LOOP + "{% set n.l = dict(a=n.l, b=n.l) %}{% endfor %}{{ n.l }}",
        SET + LOOP + "{% set n.l = n.l + n.l %}{% endfor %}",
        "{{ 'a' * 10000000000 }}",
        "{{ 10000000000 * 'a' }}",
        "{{ [[0] * 1000000] * 1000000 }}",
        "{{ 9 ** (9 ** 9) }}",
        SET + "{% set n.x = 3 %}" + LOOP + "{% set n.x = n.x * n.x %}{% endfor %}",
        "{{ 'a' | center(1000000000) }}",
        "{{ 'a' | indent(1000000000, true) }}",
        "{{ 'a'.ljust(1000000000) }}{{ 'a'.zfill(1000000000) }}",
        "{{ '\t'.expandtabs(1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ ('{:1000000000}' | attr('format'))(1) }}",
        "{{ strftime_now('%1000000000d') }}",
        "{{ [1] | batch(1000000000, 0) | list }}",
        "{{ [1] | slice(1000000000) | list }}",
        "{{ [1] | tojson(indent=1000000000) }}",
        "{{ [[1], [2]] | sum(start=[]) }}",
        "{{ (1).to_bytes(1000000000, 'big') }}",
        "{{ 'a'.translate({97: 'b'}) }}",
        "{{ ('ab' * 4000000) | list | sort | length }}",
        "{% set x %}" + LOOP + "{{ 'a' * 10000 }}{% endfor %}{% endset %}",
        "{% filter upper %}" + LOOP + "a" * 1000 + "{% endfor %}{% endfilter %}",
        LOOP + "a" * 1000 + "{% endfor %}",
        "{{ ('a' * 8000000).replace('', 'a' * 8000000) }}",
        "{{ ('a' * 8000000).join(range(100000) | map('string')) }}",
    ],
)
def test_a_template_can_not_take_much_time_or_space(source: str) -> None:
    start = time.thread_time()
    with pytest.raises(TemplateError, match=REFUSED):
        render(source)
    assert time.thread_time() - start < 10


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__init__.__globals__ }}",
        "{{ raise_exception.__globals__ }}",
        "{{ self._TemplateReference__context.environment }}",
        "{{ self.__init__.__globals__ }}",
        "{{ ''['__class__'].__mro__ }}",
        "{{ ('' | attr('__class__')).__mro__ }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ messages.clear() }}",
        "{{ (range.__call__ | attr('__globals__')).os }}",
        "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
        "{{ lipsum(1000) }}",
    ],
)
def test_a_template_can_not_reach_the_machine(source: str) -> None:
    messages = [{"role": "user"}]
    with suppress(TemplateError):
        assert render(source, messages) == ""
    assert messages == [{"role": "user"}]


@pytest.mark.parametrize("name", ["gpt-2", "spm"])
def test_bos_comes_once_in_a_chat(name: str) -> None:
    metadata = {**TINY[name], "tokenizer.ggml.add_bos_token": True}
    tokenizer = load_tokenizer(metadata)
    bos = tokenizer.text_of(tokenizer.bos)
    for source in (SMOLLM2, "{{ bos_token }}" + SMOLLM2):
        ids = encode_chat(tokenizer, ChatTemplate(source, bos), TALK)
        assert ids.count(tokenizer.bos or 0) == 1
        assert ids[0] == tokenizer.bos
    without = load_tokenizer({**metadata, "tokenizer.ggml.add_bos_token": False})
    assert without.bos not in encode_chat(without, ChatTemplate(SMOLLM2, bos), TALK)


def test_jinja_comes_when_it_is_needed() -> None:
    code = (
        "import sys, satchel.text;"
        "assert not {'jinja2', 'tokenizers', 'numpy'} & set(sys.modules), sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=child_environment({}))
