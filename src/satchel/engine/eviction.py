"""Which tokens a sequence forgets when its part of the cache is full, so that it need never end.

Tokens are forgotten when the cache is full, some at a time, and those that stay move together:
their positions are their places in the cache. So the model never sees a distance that is longer
than the cache, however long the text is. Nothing is forgotten before the cache is full, and when it
is depends on nothing but the number of tokens; so answers depend on no one else here either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np

from satchel.base.errors import OptionError
from satchel.runtime.batch import PAGE

if TYPE_CHECKING:
    import numpy.typing as npt

    from satchel.runtime.batch import Model

    Places: TypeAlias = npt.NDArray[np.int64]


class Eviction(Protocol):
    """Chooses what stays."""

    @property
    def bound(self) -> int:
        """How many tokens the cache holds when it is full."""
        ...

    @property
    def recent(self) -> int:
        """How many of the last tokens always stay."""
        ...

    @property
    def weighs(self) -> bool:
        """Whether it must know how much was attended to each token."""
        ...

    def kept(self, n_tokens: int, mass: npt.NDArray[np.float32] | None) -> Places:
        """The places that stay of so many tokens, ascending. `mass`: the attention to each."""
        ...


def with_slack(n_tokens: int) -> int:
    """A full cache, of which so many tokens stay. The more there is between, the less often tokens
    move, and the less often their keys are rounded.
    """
    return n_tokens + max(PAGE, n_tokens // 4)


@dataclass(frozen=True)
class Sinks:
    """The first tokens, which attention rests on when it has nothing to look at, and the last ones:
    StreamingLLM (https://arxiv.org/abs/2309.17453).
    """

    sinks: int
    window: int
    weighs = False

    @property
    def bound(self) -> int:
        return with_slack(self.sinks + self.window)

    @property
    def recent(self) -> int:
        return self.window

    def kept(self, n_tokens: int, mass: npt.NDArray[np.float32] | None) -> Places:  # noqa: ARG002
        last = np.arange(n_tokens - self.window, n_tokens)
        return np.concatenate([np.arange(self.sinks), last])


@dataclass(frozen=True)
class HeavyHitters:
    """Half of the budget for the tokens that most was attended to, over all layers and heads, half
    for the last ones: H2O (https://arxiv.org/abs/2306.14048). There each head has its own; here all
    keep the same, so that pages serve all layers.
    """

    budget: int
    weighs = True

    @property
    def bound(self) -> int:
        return with_slack(self.budget)

    @property
    def recent(self) -> int:
        return self.budget - self.budget // 2

    def kept(self, n_tokens: int, mass: npt.NDArray[np.float32] | None) -> Places:
        assert mass is not None
        older = mass[: n_tokens - self.recent]
        heavy = np.sort(np.argsort(-older, kind="stable")[: self.budget // 2])
        return np.concatenate([heavy, np.arange(n_tokens - self.recent, n_tokens)])


def check_eviction(eviction: Eviction, model: Model) -> None:
    """Raises OptionError where layers that see a window would miss what is forgotten."""
    assert eviction.bound == model.context_length
    windows = [group.window for group in model.groups]
    widest = max((window for window in windows if window is not None), default=0)
    if eviction.recent < widest:
        raise OptionError(
            f"only the last {eviction.recent} tokens always stay, but layers of this model see "
            f"{widest}; keep more"
        )
    if eviction.weighs and None not in windows:
        raise OptionError("evict: this model sees no more than its window, and forgets by itself")


def check_beside(
    eviction: Eviction, types: tuple[str, str], *, context: int | None, memory: int | str | None
) -> None:
    """Raises OptionError for other options of `load` that can't be kept to."""
    if context is not None:
        raise OptionError(
            f"context: what stays decides how much the cache holds, {eviction.bound} tokens here; "
            "leave it out"
        )
    if memory is not None:
        raise OptionError("memory: it can't be kept to where tokens are forgotten; leave it out")
    for kind, name in zip(types, ("cache_type_k", "cache_type_v"), strict=True):
        if kind not in ("f16", "bf16"):
            raise OptionError(f"{name}: where tokens move it must be f16 or bf16, not {kind}")


def read_eviction(sinks: int | None, window: int | None, evict: str | None) -> Eviction | None:
    """What `load` was asked for. Raises OptionError for what makes no sense."""
    if evict is not None and (sinks is not None or window is not None):
        raise OptionError("evict, and sinks with a window, are two ways to forget; take one")
    if evict is not None:
        name, _, budget = evict.partition(":")
        if name != "h2o" or not (budget.isascii() and budget.isdigit() and int(budget) >= 2):
            raise OptionError(f"evict: {evict!r} is not of the form h2o:BUDGET, as h2o:1024 is")
        return HeavyHitters(int(budget))
    if sinks is None and window is None:
        return None
    if window is None:
        raise OptionError("sinks: they need a window beside them, of so many last tokens")
    for name, value, least in (("sinks", sinks or 0, 0), ("window", window, 1)):
        if value < least:
            raise OptionError(f"{name}: {value} is less than {least}")
    return Sinks(sinks or 0, window)
