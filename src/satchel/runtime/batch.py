"""What a model computes in one step, and the little that the engine asks of a model.

A page is a run of PAGE slots of the KV cache. Layers that see equally far back are a cache group:
one page id serves them all, and each group has ids and tables of its own. The keys and values of
position p of sequence s live in page `tables[group][s, p // PAGE]`, slot `p % PAGE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

PAGE = 64  # slots of a page
MAX_WANTED = 64  # rows of logits that one run gives at most: they are large, and rarely wanted
STRIP = 64  # neighbours in a row of logits that share one maximum
RANKED = 64  # of a row of logits so many are found by the model's run: the greatest ones
NO_PAGE = -1  # in a table: behind a sequence's last page, and before its window; never read


@dataclass(frozen=True)
class CacheGroup:
    """Layers whose pages are handed out together."""

    window: int | None  # how many positions a query sees, its own among them; None: all
    n_pages: int  # their ids are 0 to n_pages - 1
    page_bytes: int  # of one page, all layers of the group together

    def first_seen(self, position: int) -> int:
        """The first position that a query at `position`, or after it, sees."""
        return 0 if self.window is None else max(0, position - self.window + 1)


def pages_within(n_positions: int) -> int:
    """The most pages that so many positions, one after another, lie in."""
    return (n_positions - 2) // PAGE + 2


@dataclass(frozen=True)
class Sizes:
    """The memory of a model, in bytes, once all of it has been used."""

    weights: int  # packed, and the file's table of embeddings
    kv: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations


@dataclass(frozen=True)
class Batch:
    """The tokens of one run, of one or several sequences, any number of each.

    The tokens of a sequence stand in the order of their positions, and all that is before them is
    in its pages already, or in this batch.
    """

    tokens: npt.NDArray[np.int32]  # [n]
    positions: npt.NDArray[np.int32]  # [n] each token's place in its sequence, from 0
    sequences: npt.NDArray[np.int32]  # [n] each token's row of `tables`
    tables: tuple[npt.NDArray[np.int32], ...]  # a group's: [n_sequences, max_pages] ids, NO_PAGE
    wanted: npt.NDArray[np.int32]  # [m] ascending indices of the tokens whose logits are wanted
    embedded: npt.NDArray[np.int32] | None = None  # the same, of those whose states are wanted

    @property
    def n_tokens(self) -> int:
        """How many tokens are computed."""
        return len(self.tokens)


@dataclass(frozen=True)
class Moves:
    """Slots of one cache group that go to other pages, none of which is moved from."""

    targets: npt.NDArray[np.int32]  # [n] pages
    sources: npt.NDArray[np.int32]  # [n, PAGE] page * PAGE + slot; less than 0: leave it alone
    shifts: npt.NDArray[np.int32]  # [n, PAGE] by how much less each position is there


class Model(Protocol):
    """A model as the engine sees it: pages in, logits out."""

    @property
    def vocab_size(self) -> int:
        """The length of a row of logits."""
        ...

    @property
    def context_length(self) -> int:
        """The most positions that a sequence can have."""
        ...

    @property
    def max_batch(self) -> int:
        """The most tokens in one run."""
        ...

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """The cache groups, in the order of `Batch.tables`."""
        ...

    @property
    def sizes(self) -> Sizes:
        """The memory that it takes."""
        ...

    @property
    def fingerprint(self) -> str:
        """Of all that decides, beside its tokens, what a page holds, to the last bit."""
        ...

    def copy_page(self, group: int, source: int, target: int) -> None:
        """Makes a page's content that of another, in all layers of the group."""
        ...

    def read_page(self, group: int, page: int) -> bytes:
        """A page's content, `page_bytes` long: the group's layers in order, each as it lies."""
        ...

    def discard_pages(self, group: int, pages: Sequence[int]) -> None:
        """Gives the memory of pages back to the system, where it takes it; what they hold is lost.
        Between two runs only.
        """
        ...

    def write_page(self, group: int, page: int, data: bytes) -> None:
        """Puts back what `read_page` gave, of this page or another. Between two runs only."""
        ...

    def run(self, batch: Batch) -> npt.NDArray[np.float32]:
        """Fills the slots of all tokens; gives the logits [m, vocab_size] of the wanted ones.

        The result is a view that the next run overwrites. One caller at a time.
        """
        ...

    def run_again(self, tokens: Sequence[int]) -> None:
        """The last run once more: of these tokens, one of each sequence, a position further.

        Only after a run of one token of each sequence, all of whose logits were wanted; none begins
        a page. Its results take the place of that run's, in what `run` gave, `maxima` and `ranked`.
        """
        ...

    @property
    def maxima(self) -> npt.NDArray[np.float32]:
        """The greatest of each STRIP neighbours in the logits of the last run, NaN where one is:
        [at least m, ceil(vocab_size / STRIP)], a view that the next run overwrites.
        """
        ...

    @property
    def states(self) -> npt.NDArray[np.float32]:
        """What the head reads, after the final norm, of the last run's embedded tokens:
        [at least len(embedded), dim], a view that the next run overwrites.
        """
        ...

    @property
    def ranked(self) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.float32]]:
        """The RANKED greatest logits of each row of the last run, the greatest first, of equals the
        lowest id first: their ids and themselves, [at least m, RANKED] both, views that the next
        run overwrites. A row's first id is -1 where the run did not find them: its logits hold NaN,
        or are too much alike, or too few.
        """
        ...

    def mass(self, pages: Sequence[int]) -> npt.NDArray[np.float32]:
        """How much was attended to each slot of these pages of the group without a window, since it
        was filled, over all its layers and heads: [len(pages) * PAGE].

        Only where the model was loaded for it. Between two runs.
        """
        ...

    def move(self, moves: Sequence[Moves]) -> None:
        """Copies slots to other pages, for each group, and turns their keys to the positions there.

        Only where the model was loaded for it. Between two runs, as one.
        """
        ...

    def close(self) -> None:
        """Gives memory and threads back. Nothing may be run afterwards."""
        ...
