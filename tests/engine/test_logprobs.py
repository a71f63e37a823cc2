"""Log probabilities are those of the model's own distribution, whatever bends the choice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.engine.asks import Ask, run
from tests.engine.fake import FakeModel

from satchel.base.errors import OptionError
from satchel.engine.engine import Engine
from satchel.engine.logprobs import token_logprob
from satchel.engine.rows import strip_maxima
from satchel.engine.sampler import SamplingParams

Row = npt.NDArray[np.float32]


def log_softmax(row: Row) -> list[float]:
    exact = [float(x) for x in row]
    total = math.fsum(math.exp(x - max(exact)) for x in exact)
    return [x - max(exact) - math.log(total) for x in exact]


@given(
    arrays(np.float32, st.integers(1, 200), elements=st.floats(-40, 40, width=32)),
    st.integers(0, 250),
    st.data(),
)
def test_agree_with_exact_sums(row: Row, n_top: int, data: st.DataObject) -> None:
    token = data.draw(st.integers(0, len(row) - 1))
    found = token_logprob(row, strip_maxima(row), token, n_top)
    want = log_softmax(row)
    assert found.token == token
    assert found.logprob == pytest.approx(want[token], abs=2e-5)
    ranks = sorted(range(len(row)), key=lambda i: (-row[i], i))[:n_top]
    assert [i for i, _ in found.top] == ranks
    assert [x for _, x in found.top] == pytest.approx([want[i] for i in ranks], abs=2e-5)


@pytest.mark.parametrize(
    "bent",
    [
        {"temperature": 0.1, "top_k": 3},
        {"temperature": 0, "logit_bias": {5: 50.0}},
        {"temperature": 0, "repeat_penalty": 1.5},
        {"temperature": 0, "processors": [lambda _, row: -row]},
    ],
)
def test_are_told_with_each_token_and_of_the_true_distribution(bent: dict[str, Any]) -> None:
    model = FakeModel()
    engine = Engine(model)
    ask = Ask(engine, [1, 2], params=SamplingParams(**bent, seed=1, logprobs=2))
    engine.submit(ask)
    run(engine)
    logprobs = [one for delta in ask.deltas for one in delta.logprobs]
    assert [one.token for one in logprobs] == ask.answer
    history = [1, 2]
    for one in logprobs:
        want = log_softmax(model.logits(history))
        assert one.logprob == pytest.approx(want[one.token], abs=2e-5)
        assert one.top[0][1] == pytest.approx(max(want), abs=2e-5)
        assert len(one.top) == 2
        history.append(one.token)


def test_none_are_told_where_none_are_asked_for() -> None:
    engine = Engine(FakeModel())
    ask = Ask(engine, [1])
    engine.submit(ask)
    run(engine)
    assert all(not delta.logprobs for delta in ask.deltas)


@pytest.mark.parametrize("n", [-1, 1.5, True, 1001])
def test_a_bad_number_of_them(n: Any) -> None:
    with pytest.raises(OptionError, match=r"^logprobs: .* is not a whole number from 0 to 1000"):
        SamplingParams(logprobs=n)
