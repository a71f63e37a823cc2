"""Short ways to ask an engine in tests, and to let it answer."""

from __future__ import annotations

from collections.abc import Sequence as Items
from typing import Any

from tests.engine.fake import Letters

from satchel.engine.engine import Engine
from satchel.engine.request import Delta, Generation
from satchel.engine.sampler import Sampler, SamplingParams
from satchel.engine.sequence import Sequence

GREEDY = SamplingParams(temperature=0)


class Ask(Generation):
    """A generation that keeps its deltas."""

    def __init__(
        self,
        engine: Engine,
        prompt: Items[int],
        max_tokens: int = 8,
        params: SamplingParams = GREEDY,
        sequence: Sequence | None = None,
        **options: Any,
    ) -> None:
        self.deltas: list[Delta] = []
        super().__init__(
            prompt,
            sequence or engine.sequence(),
            self.deltas.append,
            sampler=Sampler(params, engine.model.vocab_size),
            detokenizer=Letters(),
            max_tokens=max_tokens
            if engine.eviction
            else min(max_tokens, engine.model.context_length - len(prompt)),
            **options,
        )

    @property
    def answer(self) -> list[int]:
        return [token for delta in self.deltas for token in delta.tokens]

    @property
    def text(self) -> str:
        return "".join(delta.text for delta in self.deltas)

    @property
    def reason(self) -> str | None:
        last = self.deltas[-1] if self.deltas else None
        return last.stats.finish_reason if last and last.stats else None


def run(engine: Engine) -> int:
    """Steps until nothing is left to do, checking the pages; how many steps it took."""
    for n_steps in range(100_000):
        if not engine.has_work:
            return n_steps
        for delta in engine.step():
            delta.request.deliver(delta)
        engine.scheduler.check()
    raise AssertionError("the engine never ends")
