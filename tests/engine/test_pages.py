"""The page pool counts right, and a sequence gives back exactly what it no longer needs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from satchel.base.errors import MemoryLimitError
from satchel.engine.pages import PagePool
from satchel.engine.sequence import Sequence
from satchel.runtime.batch import PAGE, CacheGroup


def pool_of(n_pages: int, window: int | None = None) -> PagePool:
    return PagePool(CacheGroup(window, n_pages, 1))


def test_used_pages_are_handed_out_first() -> None:
    pool = pool_of(5)
    first, second = pool.take(), pool.take()
    assert (first, second) == (0, 1)
    pool.release(first)
    assert pool.take() == first
    assert pool.take() == 2


def test_a_shared_page_is_freed_by_its_last_holder() -> None:
    pool = pool_of(2)
    page = pool.take()
    pool.share(page)
    pool.check([[page], [page]])
    pool.release(page)
    assert pool.n_free == 1
    pool.release(page)
    assert pool.n_free == 2
    pool.check([])


def test_no_page_is_left() -> None:
    pool = pool_of(1)
    pool.take()
    with pytest.raises(MemoryLimitError, match="all 1 pages of the KV cache are in use"):
        pool.take()


@pytest.mark.parametrize("tables", [[], [[0], [0]], [[0, 1]], [[1]], [[0, 0]]])
def test_check_notices_what_does_not_add_up(tables: list[list[int]]) -> None:
    pool = pool_of(3)
    pool.take()
    with pytest.raises(AssertionError):
        pool.check(tables)


def test_check_notices_a_lost_page() -> None:
    pool = pool_of(2)
    pool.free.pop()
    with pytest.raises(AssertionError, match="a page is lost"):
        pool.check([])


@given(st.lists(st.integers(0, 3), max_size=300), st.lists(st.integers(0, 3), min_size=1))
def test_restart_keeps_the_common_beginning(tokens: list[int], more: list[int]) -> None:
    pool = pool_of(20)
    sequence = Sequence([pool])
    sequence.tokens = tokens
    sequence.grow(len(tokens))
    sequence.advance(len(tokens))
    prompt = tokens[: len(tokens) // 2] + more
    sequence.restart(prompt)
    common = 0
    while common < min(len(tokens), len(prompt) - 1) and tokens[common] == prompt[common]:
        common += 1
    assert sequence.n_cached == common
    assert sequence.n_pending == len(prompt) - common > 0
    sequence.check()
    pool.check([sequence.pages[0].ids])


def test_growing_takes_pages_only_when_they_are_needed() -> None:
    pool = pool_of(3)
    sequence = Sequence([pool])
    sequence.tokens = [0] * (PAGE + 1)
    for n, pages in ((1, 1), (PAGE, 1), (PAGE + 1, 2)):
        sequence.grow(n)
        assert len(sequence.pages[0].ids) == pages
