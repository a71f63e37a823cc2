"""Models of one process share what memory they are allowed."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import satchel
from satchel.base.errors import CrowdedError
from satchel.engine.budget import GROWTH_BYTES, MODELS, Account, Budget, room_in
from satchel.engine.ledger import Forecast

MB = 1 << 20


def takes(n_bytes: int) -> Forecast:
    return Forecast(64, 1, ("f16", "f16"), n_bytes, 0, 0, 0, 0, ())


class Model:
    pass


def test_what_others_take_is_counted_till_they_go() -> None:
    budget = Budget()
    first, model = Account(budget), Model()
    limit = 1000 * MB
    with first.opened(limit):
        assert first.checked(takes(900 * MB), limit).total == 900 * MB
        first.take(model, 500 * MB)
    assert budget.taken[model] >= 500 * MB + GROWTH_BYTES
    second = Account(budget)
    with second.opened(limit), pytest.raises(CrowdedError, match=r"other models take .* allowed"):
        second.checked(takes(room_in(limit) - 400 * MB), limit)
    second.checked(takes(100 * MB), limit)
    del model
    gc.collect()
    second.checked(takes(room_in(limit)), limit)


def test_a_process_is_what_it_was_before_its_first_model() -> None:
    budget = Budget()
    first = Account(budget)
    with first.opened(None):
        assert first.process == budget.alone
    second = Account(budget)
    kept = bytearray(64 * MB)  # as a tokenizer would take
    with second.opened(None):
        pass
    if budget.alone is not None:
        assert second.process
        assert second.process - budget.alone == pytest.approx(len(kept), rel=0.1)


def test_real_models_side_by_side(smollm2: Path) -> None:
    def load() -> satchel.LLM:
        return satchel.load(smollm2, context=1024, parallel=1, memory=limit)

    one = satchel.forecast(smollm2, context=1024, parallel=1)
    own = one.total - one.process  # the process may have grown large by other tests
    others = sum(MODELS.taken.values())
    limit = (others + one.total + own // 2) * 100 // 97  # room for one and a half
    with load() as first:
        with pytest.raises(CrowdedError):
            load()
        assert first.generate("The sea", max_tokens=4).tokens
    with load() as second:
        assert second.context_length == 1024
