"""Texts as vectors: the states of a model's last layer, after its final norm, pooled over a text.

Neither more weights nor other pages are needed, and no logits are computed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from queue import SimpleQueue
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np

from satchel.base.errors import CancelledError, OptionError
from satchel.engine.request import Delta, Request
from satchel.engine.sequence import Sequence
from satchel.engine.stream import Stream

if TYPE_CHECKING:
    import numpy.typing as npt

    from satchel.engine.rows import Logits, Rows

Pooling: TypeAlias = Literal["mean", "last"]
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
AT_ONCE = 32  # requests: enough to fill a step with short texts, few enough to let others in


class Embedding(Request):
    """Pools the states of its tokens: their mean, or the last one's alone."""

    def __init__(
        self,
        prompt: Items[int],
        sequence: Sequence,
        deliver: Callable[[Delta], None],
        pooling: Pooling,
    ) -> None:
        super().__init__(prompt, sequence, deliver)
        self.n_read = len(prompt) - 1 if pooling == "last" else 0
        self.n_pooled = len(prompt) - self.n_read
        self.total: npt.NDArray[np.float64] | None = None

    @property
    def first_wanted(self) -> int:
        return len(self.sequence.tokens)

    @property
    def first_embedded(self) -> int:
        return self.n_read

    def read_states(self, rows: Rows) -> None:
        wide = rows.astype(np.float64)
        if self.total is None:
            self.total = np.zeros_like(wide[0])
        for row in wide:  # one by one: the sum must not depend on how a text is cut into steps
            self.total += row
        self.n_read += len(rows)

    def read(self, logits: Logits, rows: slice) -> list[int]:  # noqa: ARG002
        return []

    def accept(self, tokens: list[int]) -> Delta | None:
        if self.sequence.n_pending:
            return None
        return self.finish("length", tokens)

    def vector(self) -> npt.NDArray[np.float32]:
        """The pooled states, of length one: [dim]."""
        assert self.total is not None, "a text without tokens"
        assert self.n_read == len(self.prompt), "a state was never read"
        return unit(self.total / self.n_pooled)


def unit(vector: npt.NDArray[np.floating]) -> npt.NDArray[np.float32]:
    """A vector of the same direction and of length one; zeroes stay."""
    length = float(np.linalg.norm(vector))
    return (vector / length if length else vector).astype(np.float32)


def read_pooling(given: object) -> Pooling:
    """A pooling as given, checked. Raises OptionError."""
    for pooling in POOLINGS:
        if given == pooling:
            return pooling
    raise OptionError(f"pooling: {given!r} is none of {', '.join(POOLINGS)}")


class Embeddings:
    """The vectors of many texts, in the making; a few at a time are under way."""

    def __init__(
        self, texts: Items[Items[int]], begin: Callable[[Items[int]], tuple[Embedding, Stream]]
    ) -> None:
        """`begin` starts one text's request."""
        self.n_tokens = sum(map(len, texts))
        self._texts = texts
        self._begin = begin
        self._cancelled = False
        self._under_way: deque[tuple[Embedding, Stream]] = deque()

    def cancel(self) -> None:
        """Has `result`, in whatever thread it waits, end within a step. May be called any time."""
        self._cancelled = True
        for _, stream in tuple(self._under_way):
            stream.cancel()

    def result(self) -> npt.NDArray[np.float32]:
        """The vectors, [n, dim], each of length one. Raises CancelledError after `cancel`, and
        what makes a request fail.
        """
        left = deque(self._texts)
        vectors: list[npt.NDArray[np.float32]] = []
        try:
            while left or self._under_way:
                while left and len(self._under_way) < AT_ONCE and not self._cancelled:
                    self._under_way.append(self._begin(left.popleft()))
                if self._cancelled:
                    raise CancelledError("embedding was cancelled")
                embedding, stream = self._under_way[0]
                if stream.result().stats.finish_reason != "cancelled":
                    vectors.append(embedding.vector())
                    self._under_way.popleft()
        finally:
            while self._under_way:
                self._under_way.popleft()[1].close()
        return np.stack(vectors)


def begin_embedding(
    tokens: Items[int], sequence: Sequence, pooling: Pooling, submit: Callable[[Request], None]
) -> tuple[Embedding, Stream]:
    """Submits one text's request."""
    deltas = SimpleQueue[Delta]()
    embedding = Embedding(tokens, sequence, deltas.put, pooling)
    submit(embedding)
    return embedding, Stream(embedding, deltas)
