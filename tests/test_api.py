"""The public API on the fake model, and on a real one."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.fake import FakeModel

import satchel
from satchel import errors
from satchel.api import LLM, choose_context
from satchel.files.gguf_writer import write_gguf
from satchel.text import load_tokenizer

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
START, END, BOS = 256, 257, 258
GREEDY: dict[str, Any] = {"temperature": 0}


def byte_letters() -> list[str]:
    """The 256 letters by which byte-level vocabularies write bytes."""
    plain = {*range(33, 127), *range(161, 173), *range(174, 256)}
    rest = iter(range(256, 512))
    return [chr(byte if byte in plain else next(rest)) for byte in range(256)]


def metadata(add_bos: bool = False) -> dict[str, Any]:
    """A vocabulary in which token 65 is "A", and so on for every byte."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*byte_letters(), "<|im_start|>", "<|im_end|>", "<|bos|>"],
        "tokenizer.ggml.token_type": [1] * 256 + [3] * 3,
        "tokenizer.ggml.merges": [],
        "tokenizer.ggml.bos_token_id": BOS,
        "tokenizer.ggml.eos_token_id": END,
        "tokenizer.ggml.add_bos_token": add_bos,
    }


def make(
    reply: Callable[[Sequence[int]], int] | None = None,
    *,
    add_bos: bool = False,
    template: str | None = TEMPLATE,
    kind: type[FakeModel] = FakeModel,
    prefix_cache: bool = True,
    **sizes: Any,
) -> LLM:
    model = kind(vocab_size=259, reply=reply, **sizes)
    tokenizer = load_tokenizer(metadata(add_bos))
    return LLM(model, tokenizer, template=template, name="fake", prefix_cache=prefix_cache)


def says(text: str) -> Callable[[Sequence[int]], int]:
    """Answers a chat, or "Say:", with this text and an end token."""
    answer = [*text.encode(), END]

    def reply(history: Sequence[int]) -> int:
        given = bytes(token for token in history if token < 256)
        for mark in (b"Say:", b"assistant\n"):
            if mark in given:
                return answer[min(len(given.split(mark)[-1]), len(answer) - 1)]
        return END

    return reply


class Slow(FakeModel):
    def run(self, batch: Any) -> Any:
        time.sleep(0.002)
        return super().run(batch)


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make(says("Grüß dich, Welt.\nUser:")) as made:
        yield made


def test_completes_a_prompt_as_it_stands(llm: LLM) -> None:
    done = llm.generate("Say:", **GREEDY)
    assert done.text == "Grüß dich, Welt.\nUser:"
    assert done.tokens == (*done.text.encode(), END)
    assert done.stats.finish_reason == "stop"
    assert (done.stats.prompt_tokens, done.stats.generated_tokens) == (4, len(done.tokens))
    assert llm.generate(list(b"Say:"), **GREEDY).text == done.text


def test_streams_whole_characters_and_ends_with_the_stats(llm: LLM) -> None:
    pieces = list(llm.stream("Say:", stop=["\nUser:", "?"], **GREEDY))
    assert "".join(piece.text for piece in pieces) == "Grüß dich, Welt."
    assert "�" not in "".join(piece.text for piece in pieces)
    assert [piece.stats is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]
    assert llm.generate("Say:", stop="ß", **GREEDY).text == "Grü"


def test_max_tokens_and_ignore_eos(llm: LLM) -> None:
    done = llm.generate("Say:", max_tokens=4, **GREEDY)
    assert (done.text, done.stats.finish_reason) == ("Grü", "length")
    assert llm.generate("Say:", max_tokens=0).tokens == ()
    done = llm.generate("Say:", max_tokens=30, ignore_eos=True, **GREEDY)
    assert len(done.tokens) == 30


def test_chat_applies_the_template(llm: LLM) -> None:
    prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    done = llm.chat("Hi", **GREEDY)
    assert done.text.startswith("Grüß")
    assert done.stats.prompt_tokens == len(llm.tokenize(prompt))
    assert llm.tokenize(prompt)[:2] == [START, ord("u")]
    assert llm.chat([{"role": "user", "content": "Hi"}], **GREEDY).text == done.text
    assert "".join(piece.text for piece in llm.chat_stream("Hi", **GREEDY)) == done.text


@pytest.mark.parametrize("prompt", ["a", "<|bos|>a"])
def test_bos_comes_exactly_once(prompt: str) -> None:
    with make(add_bos=True) as llm:
        assert llm.generate(prompt, max_tokens=1).stats.prompt_tokens == 2
        assert llm.generate([ord("a")], max_tokens=1).stats.prompt_tokens == 1
        assert llm.generate("", max_tokens=1).stats.prompt_tokens == 1
    with make(template="{{ bos_token }}{{ messages[0].content }}", add_bos=True) as llm:
        assert llm.chat("a", max_tokens=1).stats.prompt_tokens == 2


def test_seeds_repeat_answers() -> None:
    with make() as llm:
        first, again, other = (llm.generate("x", max_tokens=20, seed=s) for s in (1, 1, 2))
        assert first.tokens == again.tokens != other.tokens


def test_logits_of_every_position() -> None:
    with make(max_batch=7) as llm:
        ids = list(range(200))
        logits = llm.logits(ids)
        assert logits.shape == (200, 259)
        assert logits.dtype == np.float32
        fake = FakeModel(vocab_size=259)
        np.testing.assert_array_equal(logits[150], fake.logits(ids[:151]))
        np.testing.assert_array_equal(llm.logits(np.arange(3)), logits[:3])
        assert llm.logits([0] * 256).shape == (256, 259)


def test_tokens_and_texts(llm: LLM) -> None:
    assert llm.tokenize("ü<|im_end|>") == [0xC3, 0xBC, END]
    assert llm.tokenize("a", add_bos=True) == [BOS, ord("a")]
    assert len(llm.tokenize("<|im_end|>", parse_special=False)) == 10
    assert llm.detokenize([0xC3, 0xBC, END]) == "ü<|im_end|>"
    assert llm.detokenize([0xC3, 0xBC, END], skip_special=True) == "ü"
    assert (llm.name, llm.context_length, llm.vocab_size) == ("fake", 256, 259)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda m: m.generate("a" * 256), errors.ContextLengthError, "256 tokens .* of 256"),
        (lambda m: m.stream("a" * 300), errors.ContextLengthError, "300 tokens .* of 256"),
        (lambda m: m.session().generate("a" * 256), errors.ContextLengthError, "256"),
        (lambda m: m.session().send("a" * 256), errors.ContextLengthError, "context of 256"),
        (lambda m: m.logits([1] * 257), errors.ContextLengthError, "257 .* context of 256"),
        (lambda m: m.generate(""), errors.TextError, "empty"),
        (lambda m: m.generate([259]), errors.TextError, "no token 259; .* from 0 to 258"),
        (lambda m: m.generate([-1]), errors.TextError, "no token -1"),
        (lambda m: m.generate([1.5]), errors.TextError, r"no token 1\.5"),
        (lambda m: m.generate(None), errors.TextError, "a NoneType is not a list of token ids"),
        (lambda m: m.generate(b"ab"), errors.TextError, "a bytes is not a list of token ids"),
        (lambda m: m.logits("ab"), errors.TextError, "a str is not a list of token ids"),
        (lambda m: m.tokenize(b"ab"), errors.TextError, "a bytes is not a text"),
        (lambda m: m.logits([]), errors.TextError, "no tokens"),
        (lambda m: m.detokenize([999]), errors.TextError, "no token 999"),
        (lambda m: m.generate("a", temprature=1), errors.OptionError, "temprature: .*temperature"),
        (lambda m: m.generate("a", top_p=2), errors.OptionError, "top_p: 2 .* from 0 to 1"),
        (lambda m: m.generate("a", max_tokens=-1), errors.OptionError, "max_tokens: -1"),
        (lambda m: m.generate("a", max_tokens="9"), errors.OptionError, "max_tokens: '9'"),
        (lambda m: m.generate("a", stop=""), errors.OptionError, "stop: ''"),
        (lambda m: m.generate("a", stop=["b", 3]), errors.OptionError, "stop: 3"),
        (lambda m: m.generate("a", stop=7), errors.OptionError, "stop: 7"),
        (lambda m: m.generate("a", ignore_eos=1), errors.OptionError, "ignore_eos: 1"),
        (lambda m: m.generate("a", logit_bias={300: 1.0}), errors.OptionError, "no token 300"),
        (lambda m: m.chat([]), errors.OptionError, "there are none"),
        (lambda m: m.chat([{"content": "a"}]), errors.OptionError, "message 1: .*role"),
        (lambda m: m.chat(["a"]), errors.OptionError, "message 1"),
        (lambda m: m.chat([{"role": "user"}]), errors.OptionError, "message 1: it has no content"),
        (lambda m: m.chat({"role": "user"}), errors.OptionError, "nor a list"),
        (lambda m: m.chat(5), errors.OptionError, "nor a list"),
    ],
)
def test_bad_input_is_named(llm: LLM, ask: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        ask(llm)
    assert "\n" not in str(caught.value)
    assert llm.generate("Say:", **GREEDY).text  # it lives on


def test_no_chat_template() -> None:
    with make(template=None) as llm, pytest.raises(errors.TemplateError, match="no chat template"):
        llm.chat("Hi")


def test_the_answer_may_fill_the_context_and_no_more(llm: LLM) -> None:
    done = llm.generate("a" * 250, ignore_eos=True)
    assert (len(done.tokens), done.stats.finish_reason) == (6, "length")


def test_threads_share_the_model_and_hear_what_they_would_alone() -> None:
    prompts = [f"{n}" * (1 + 5 * n) for n in range(20)]
    with make() as llm:
        alone = [llm.generate(prompt, max_tokens=30, seed=5).tokens for prompt in prompts]
    with make(max_batch=40, n_pages=9) as llm:
        heard: dict[int, tuple[int, ...]] = {}

        def ask(n: int) -> None:
            heard[n] = llm.generate(prompts[n], max_tokens=30, seed=5).tokens

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [heard[n] for n in range(20)] == alone


def test_closing_ends_what_is_under_way() -> None:
    llm = make(kind=Slow, context_length=1024)
    stream = llm.stream("a", ignore_eos=True)
    next(stream)
    llm.close()
    with pytest.raises(errors.CancelledError):
        stream.result()
    with pytest.raises(errors.CancelledError, match="load it again"):
        llm.generate("a")
    llm.close()


def test_a_session_computes_only_what_is_new(llm: LLM) -> None:
    with llm.session(system="Be kind.") as session:
        first = session.send("Hi", **GREEDY)
        second = session.send("And?", **GREEDY)
    assert [message["role"] for message in session.messages] == [
        "system", "user", "assistant", "user", "assistant",
    ]  # fmt: skip
    assert first.stats.cached_tokens == 0
    assert second.stats.cached_tokens == first.stats.prompt_tokens + len(first.tokens) - 1
    fresh = llm.chat(session.messages[:-1], **GREEDY)
    assert fresh.tokens == second.tokens
    assert fresh.stats.cached_tokens == fresh.stats.prompt_tokens - 1
    assert fresh.stats.prompt_tokens == second.stats.prompt_tokens


def test_a_session_rolls_back_to_the_common_beginning() -> None:
    with make() as llm:
        session = llm.session()
        options: dict[str, Any] = {"max_tokens": 40, "seed": 9}
        for prompt in ("x" * 100, "x" * 70 + "y", "x" * 200, "x" * 200, "z"):
            done = session.generate(prompt, **options)
            assert done.tokens == llm.generate(prompt, **options).tokens
        assert session.generate("z", max_tokens=1).stats.cached_tokens == 0
        assert session.generate("z" * 30, max_tokens=1).stats.cached_tokens == 1


def test_sessions_lose_their_cache_to_others_and_nothing_else() -> None:
    with make(n_pages=5) as llm:
        sessions = [llm.session() for _ in range(4)]
        options: dict[str, Any] = {"max_tokens": 20}

        def round_of_answers() -> list[tuple[int, ...]]:
            return [s.generate("a" * 150, seed=n, **options).tokens for n, s in enumerate(sessions)]

        heard = [round_of_answers(), round_of_answers()]
        alone = [llm.generate("a" * 150, seed=n, max_tokens=20).tokens for n in range(4)]
    assert heard == [alone, alone]


def test_a_session_holds_no_pages_but_what_it_computed_is_kept() -> None:
    with make() as llm:
        with llm.session() as session:
            session.generate("a" * 200, max_tokens=1)
            assert llm.usage().pages_in_use == 0
            assert llm.usage().pages_kept > 0
        assert llm.generate("a" * 150, max_tokens=1).stats.cached_tokens == 149
    with make(prefix_cache=False) as llm, llm.session() as session:
        for _ in range(2):
            assert session.generate("a" * 200, max_tokens=1).stats.cached_tokens == 0
        assert llm.usage().pages_kept == 0


def test_closing_a_session_ends_its_answer() -> None:
    with make(kind=Slow, context_length=1024) as llm:
        session = llm.session()
        stream = session.stream("a", max_tokens=900)
        next(stream)
        session.close()
        assert stream.stats is not None
        assert stream.stats.finish_reason == "cancelled"
        assert session.generate("b", max_tokens=1).tokens


def test_one_answer_at_a_time_in_a_session() -> None:
    with make(kind=Slow, context_length=1024) as llm:
        session = llm.session()
        stream = session.send_stream("Hi", ignore_eos=True)
        with pytest.raises(errors.OptionError, match="still answering"):
            session.send("Again")
        stream.close()
        assert session.send("Again", max_tokens=2).stats.generated_tokens == 2


def test_an_answer_that_was_cut_short_is_remembered_as_it_was_read() -> None:
    with make(says("one two three"), kind=Slow) as llm:
        session = llm.session()
        with session.send_stream("Hi", **GREEDY) as stream:
            while stream.text != "one":
                next(stream)
        assert session.messages[-1] == {"role": "assistant", "content": "one"}
        with session.send_stream("Hi") as stream:
            pass
        assert len(session.messages) == 2
        with pytest.raises(errors.ContextLengthError):
            session.send("a" * 300)
        assert len(session.messages) == 2
        session.reset()
        assert session.messages == []


def test_a_conversation_survives_in_a_file(llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "talk.json"
    session = llm.session("Be brief.")
    session.send("Grüezi", **GREEDY)
    session.save(path)
    other = llm.session()
    other.load(path)
    assert other.messages == session.messages
    assert "Grüezi" in path.read_text(encoding="utf-8")
    assert session.send("And?", **GREEDY).tokens == other.send("And?", **GREEDY).tokens
    llm.session().save(path)
    other.load(path)
    assert other.messages == []
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "not a saved conversation"),
        ("[" * 100_000, "not a saved conversation"),
        ("[]", "not a saved conversation"),
        ('{"version": 1}', "not a saved conversation"),
        ('{"version": 1, "messages": "a"}', "not a saved conversation"),
        ('{"version": 1, "messages": [3]}', "message 1"),
        ('{"version": 7, "messages": []}', "another version"),
    ],
)
def test_files_that_hold_no_conversation(
    llm: LLM, tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "talk.json"
    path.write_text(content)
    session = llm.session("Be brief.")
    with pytest.raises(errors.FileFormatError, match=message):
        session.load(path)
    assert len(session.messages) == 1


def test_files_that_cannot_be_read_or_written(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(errors.OptionError, match=r"can't read .*: No such file"):
        llm.session().load(tmp_path / "none.json")
    with pytest.raises(errors.OptionError, match=r"can't write .*: No such file"):
        llm.session().save(tmp_path / "none" / "talk.json")


@pytest.mark.parametrize(
    ("asked", "trained", "context"),
    [(None, 8192, 4096), (None, 2048, 2048), (0, 8192, 8192), (100, 2048, 100), (2048, 2048, 2048)],
)
def test_the_context_that_is_chosen(asked: int | None, trained: int, context: int) -> None:
    assert choose_context(asked, trained) == context


def test_an_unknown_architecture_is_what_is_said_first(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"general.architecture": "mamba"}, {"a": np.zeros(1, np.float32)})
    with pytest.raises(errors.UnsupportedError, match="architecture 'mamba' is not supported"):
        satchel.load(path)


def test_a_watched_stream_says_when_there_is_something_to_read(llm: LLM) -> None:
    told = threading.Semaphore(0)
    stream = llm.stream("Say:", **GREEDY)
    stream.watch(told.release)
    text = ""
    while stream.stats is None:
        assert told.acquire(timeout=60)
        while stream.is_ready and stream.stats is None:
            text += next(stream).text
    assert text == "Grüß dich, Welt.\nUser:"
    assert stream.is_ready  # nothing more will come: `next` says so at once


def test_usage_counts_requests_steps_and_pages(llm: LLM) -> None:
    before = llm.usage()
    assert (before.running, before.waiting, before.steps, before.pages_in_use) == (0, 0, 0, 0)
    with llm.session() as session:
        session.generate("Say:", **GREEDY)
        after = llm.usage()
        assert after.pages == before.pages
        assert (after.pages_in_use, after.pages_kept) == (0, 1)
        assert after.steps == after.shares > 5


def test_the_template_can_be_applied_alone(llm: LLM) -> None:
    assert llm.apply_template("Hi") == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("asked", "message"),
    [(4096, "4096 tokens are more than the 2048"), (-1, "-1 is not"), ("9", "'9' is not")],
)
def test_contexts_that_cannot_be(asked: Any, message: str) -> None:
    with pytest.raises(errors.OptionError, match=message):
        choose_context(asked, 2048)


@pytest.mark.parametrize("options", [{"threads": 0}, {"threads": 1.5}, {"parallel": 0}])
def test_options_of_load_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(errors.OptionError, match="is not a whole number of 1 or more"):
        satchel.load("nowhere.gguf", **options)


def test_importing_is_cheap() -> None:
    code = (
        "import sys, satchel; satchel.errors.OptionError; satchel.__version__;"
        "heavy = {'numpy', 'llvmlite', 'tokenizers', 'jinja2'} & set(sys.modules);"
        "assert not heavy, heavy; assert 'load' in dir(satchel); satchel.load; satchel.LLM"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        satchel.lode  # noqa: B018


@pytest.fixture(scope="module")
def real(smollm2: Path) -> Iterator[LLM]:
    with satchel.load(smollm2, context=512, threads=2) as llm:
        yield llm


def test_a_real_model_answers(real: LLM) -> None:
    done = real.chat("Why is the sky blue? Answer in two sentences.", max_tokens=120, **GREEDY)
    assert "scattering" in done.text  # as llama.cpp answers, word for word until there
    assert done.stats.finish_reason == "stop"


def test_a_real_model_says_the_same_alone_beside_others_and_from_a_session(real: LLM) -> None:
    prompts = ["The sea is", "Once upon a time there was a king who", "def add(a, b):\n", "2, 3,"]
    alone = [real.generate(prompt, max_tokens=24, **GREEDY).tokens for prompt in prompts]
    streams = [real.stream(prompt, max_tokens=24, **GREEDY) for prompt in prompts]
    assert [stream.result().tokens for stream in streams] == alone
    with real.session() as session:
        for prompt, tokens in zip(prompts, alone, strict=True):
            for part in (prompt[: len(prompt) // 2], prompt):
                done = session.generate(part, max_tokens=24, **GREEDY)
            assert done.tokens == tokens


def test_logits_of_a_real_model_lead_to_its_greedy_answer(real: LLM) -> None:
    ids = real.tokenize("The sea is")
    done = real.generate(ids, max_tokens=80, **GREEDY)
    logits = real.logits([*ids, *done.tokens])
    assert logits.shape == (len(ids) + len(done.tokens), real.vocab_size)
    assert tuple(logits.argmax(axis=1)[len(ids) - 1 : -1]) == done.tokens
    assert math.isfinite(float(logits.min()))
    assert json.dumps(done.stats.__dict__)
