"""Memory that no one needs goes back to the system, and the engine's counts say so."""

from __future__ import annotations

import gc
import weakref

from tests.engine.fake import FakeModel
from tests.test_api import make, says

from satchel import LLM
from satchel.runtime.batch import PAGE


def fake_of(llm: LLM) -> FakeModel:
    model = llm._speaker.model
    assert isinstance(model, FakeModel)
    return model


def test_what_is_taken_grows_and_is_given_back() -> None:
    with make(says("x")) as llm:
        engine, model = llm._speaker.engine, fake_of(llm)
        page_bytes = model.groups[0].page_bytes
        before = llm.usage().memory
        assert (before.kv, before.kv_taken) == (model.sizes.kv, 0)
        assert (before.weights, before.activations) == (1000, 100)
        first = llm.generate("a" * 3 * PAGE, max_tokens=1, temperature=0).tokens
        taken = llm.usage().memory.kv_taken
        assert 3 * page_bytes <= taken <= 4 * page_bytes
        assert engine.give_back() == 0  # all that is taken holds something
        engine.spill_idle(100)
        assert engine.give_back() == taken
        assert llm.usage().memory.kv_taken == 0
        assert len(model.discarded) == taken // page_bytes
        engine.scheduler.check()
        assert llm.generate("a" * 3 * PAGE, max_tokens=1, temperature=0).tokens == first


def test_a_model_goes_with_its_last_user() -> None:
    """Without a collection of cycles: its memory is wanted back at once."""
    gc.disable()
    try:
        with make(says("x")) as llm:
            llm.generate("Say:")
            with llm.session() as session:
                session.send("Hello")
            llm.chat([{"role": "user", "content": "Hello"}])
            llm.embed("a text")
            model = weakref.ref(llm._speaker.model)
        del llm, session
        assert model() is None
    finally:
        gc.enable()
