"""Vectors of texts: pooled states, the same whatever else is computed, cancelled within a step."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.fake import STATE_DIM, FakeModel
from tests.serve.served import wait_for
from tests.test_api import Slow, make, says

import satchel
from satchel import LLM
from satchel.archs import trace
from satchel.base.errors import CancelledError, ContextLengthError, OptionError, TextError
from satchel.compiler.expose_states import states_of
from satchel.engine.embedding import AT_ONCE, Pooling, unit
from satchel.files.checkpoint import open_checkpoint
from satchel.graph import evaluate
from satchel.graph.graph import Graph
from satchel.measure.accuracy import Decoded


@pytest.fixture
def llm() -> Iterator[LLM]:
    with make(says("x")) as made:
        yield made


def fake_of(llm: LLM) -> FakeModel:
    model = llm._speaker.model
    assert isinstance(model, FakeModel)
    return model


def states(llm: LLM, text: bytes) -> Any:
    return np.array(
        [fake_of(llm).logits(list(text[: n + 1]))[:STATE_DIM] for n in range(len(text))]
    )


def test_a_vector_is_the_mean_of_all_states_or_the_last(llm: LLM) -> None:
    text = bytes(range(97, 97 + 26)) * 4  # more than a step's 32 tokens
    (mean,), (last,) = llm.embed([text.decode()]), llm.embed([text.decode()], pooling="last")
    want = states(llm, text)
    assert np.array_equal(mean, unit(want.astype(np.float64).mean(0)))
    assert np.array_equal(last, unit(want[-1].astype(np.float64)))
    assert mean.dtype == np.float32
    assert np.linalg.norm(mean) == pytest.approx(1)


def test_no_logits_are_computed(llm: LLM) -> None:
    llm.embed(["some text", "and more"])
    assert all(len(batch.wanted) == 0 for batch in fake_of(llm).batches)


def test_texts_share_steps_and_change_no_other(llm: LLM) -> None:
    texts = [f"text number {i} " + "and so on " * (i % 4) for i in range(2 * AT_ONCE + 3)]
    alone = np.concatenate([llm.embed(text) for text in texts])
    before = len(fake_of(llm).batches)
    with llm.stream("Say:", temperature=0) as stream:
        together = llm.embed(texts)
        assert stream.result().text == "x"
    assert np.array_equal(together, alone)
    assert len(fake_of(llm).batches) - before < len(texts)
    assert llm.usage().pages_in_use == 0


def test_a_request_that_lost_its_pages_goes_on_where_it_was() -> None:
    with make(says("x"), n_pages=4, context_length=256, max_batch=32) as llm:
        texts = ["a" * 200, "b" * 150, "c" * 256]
        alone = [llm.embed(text)[0] for text in texts]
        assert np.array_equal(llm.embed(texts), np.stack(alone))


def test_tokens_and_single_texts(llm: LLM) -> None:
    assert np.array_equal(llm.embed("abc"), llm.embed([[97, 98, 99]]))
    assert llm.embed(["a", [98]]).shape == (2, STATE_DIM)


@pytest.mark.parametrize(
    ("texts", "error", "says"),
    [
        ([], TextError, "there are none"),
        ([""], TextError, "text 1: there are no tokens"),
        (["a", []], TextError, "text 2: there are no tokens"),
        (["a" * 257], ContextLengthError, "257 tokens are more than the context of 256"),
        ([[300]], TextError, "300"),
        (3, TextError, "not a list of texts"),
        ([3], TextError, "not a list of token ids"),
    ],
)
def test_what_cannot_be_embedded(llm: LLM, texts: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        llm.embed(texts)


def test_there_are_two_ways_of_pooling(llm: LLM) -> None:
    with pytest.raises(OptionError, match="pooling: 'max' is none of mean, last"):
        llm.embed("a", pooling="max")


def test_cancelling_ends_it_within_a_step() -> None:
    with make(says("x"), kind=Slow) as llm:
        pending = llm.embeddings(["a long text " * 20] * 200)
        assert pending.n_tokens == 200 * 240
        failed: list[Exception] = []

        def wait() -> None:
            try:
                pending.result()
            except CancelledError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_for(lambda: llm.usage().steps > 3)
        pending.cancel()
        waiting.join(60)
        assert len(failed) == 1
        assert llm.usage().steps < 1000  # all would be 1500
        assert llm.usage().pages_in_use == 0


def test_a_failing_model_fails_it_and_no_more(llm: LLM) -> None:
    fake_of(llm).error = RuntimeError("broken")
    with pytest.raises(RuntimeError, match="broken"):
        llm.embed(["a", "b"])
    assert llm.embed("a").shape == (1, STATE_DIM)


def test_a_real_model_against_the_reference(smollm2: Path) -> None:
    """Activations are quantized, so near is not equal; what shares its steps is."""
    texts = ["The cat sat on the mat.", "A kitten sits on a rug.", "Shares fell by nine percent."]
    checkpoint = open_checkpoint(smollm2)
    graph = trace(checkpoint)
    reference = Graph(graph.inputs, (states_of(graph),))
    with satchel.load(smollm2, context=256, parallel=2) as llm:
        llm.generate(texts[0], max_tokens=1)
        ids = llm.tokenize(texts[0])
        rows = evaluate(reference, Decoded(checkpoint), ids, np.float32)
        poolings: tuple[tuple[Pooling, Any], ...] = (("mean", rows.mean(0)), ("last", rows[-1]))
        for pooling, want in poolings:
            vectors = llm.embed(texts, pooling)
            assert float(unit(want) @ vectors[0]) > 0.995
            for text, vector in zip(texts, vectors, strict=True):
                assert np.array_equal(llm.embed(text, pooling)[0], vector)
            alike, other, _ = (vectors @ vectors.T)[np.triu_indices(3, 1)]
            assert alike > other
