"""What an answer must keep to: which tokens may come next, as a grammar or a schema says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

WORD = 32  # tokens that one word of a mask tells of


class Constraint(Protocol):
    """Follows one answer, token by token, and says what may come next.

    The engine calls `accept` as soon as a token is chosen and `allowed` once the model has run: a
    mask that takes long is best begun in the one, on a thread of its own, and awaited in the other.
    A SatchelError that a call raises ends this request alone.
    """

    def allowed(self) -> npt.NDArray[np.uint32] | None:
        """The tokens that may come next: token t is bit t % 32 of word t // 32; None: all.

        The mask [ceil(vocab_size / 32)] is only read, and only until the next `accept`. It has at
        least one token; where the answer may end, those that end it are among them.
        """
        ...

    def accept(self, token: int) -> None:
        """The answer goes on by this token, which was allowed; it may be one that ends it."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that now follow in any case, by which the constraint has gone on already."""
        ...

    @property
    def mask_ms(self) -> float:
        """What finding out what is allowed took on average."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether the answer is complete and nothing may follow: it ends here, as by a stop."""
        ...


def allowed_ones(mask: npt.NDArray[np.uint32], vocab_size: int) -> npt.NDArray[np.bool_]:
    """Whether a mask allows each token: [vocab_size]."""
    octets = mask.astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(octets, count=vocab_size, bitorder="little").view(np.bool_)
