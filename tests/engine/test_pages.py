"""The page pool counts right, and a sequence gives back exactly what it no longer needs."""

from __future__ import annotations

import pytest

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


def test_memory_is_given_back_once_and_taken_from_the_first_page_on() -> None:
    pool = pool_of(5)
    pages = [pool.take() for _ in range(4)]
    for page in (1, 0, 3):
        pool.release(page)
    assert sorted(pool.give_back()) == [0, 1, 3]
    assert pool.used == {2}
    assert pool.give_back() == []
    assert [pool.take() for _ in range(4)] == [0, 1, 3, 4]
    pool.check([[2], [0, 1, 3, 4]])
    assert len(pages) == 4


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


def test_kept_pages_are_idle_until_they_are_shared_or_dropped() -> None:
    pool = pool_of(3)
    page = pool.take()
    pool.keep(page)
    pool.release(page)
    assert (pool.n_free, pool.n_idle, pool.n_held) == (2, 1, 0)
    pool.check([], [page])
    pool.share(page)
    assert (pool.n_free, pool.n_idle, pool.n_held) == (2, 0, 1)
    pool.drop(page)
    pool.check([[page]])
    pool.release(page)
    assert (pool.n_free, pool.n_idle, pool.n_held) == (3, 0, 0)


@pytest.mark.parametrize("window", [1, 63, 64, 65, 66, 200])
def test_a_window_slides_over_the_pages(window: int) -> None:
    sequence = Sequence([pool_of(10, window)])
    sequence.tokens = [0] * 500
    (pages,) = sequence.pages
    for n in range(1, 500):
        sequence.grow(n)
        sequence.advance(1)
        sequence.slide()
        sequence.check()
        seen = range(max(0, n - window + 1), n)
        row = pages.row(8)
        assert [place for place, page in enumerate(row) if page >= 0] == sorted(
            {position // PAGE for position in seen}
            | ({n // PAGE} if n % PAGE and window == 1 else set())
        )
    sequence.clear()
    pages.pool.check([])


def test_growing_takes_pages_only_when_they_are_needed() -> None:
    pool = pool_of(3)
    sequence = Sequence([pool])
    sequence.tokens = [0] * (PAGE + 1)
    for n, pages in ((1, 1), (PAGE, 1), (PAGE + 1, 2)):
        sequence.grow(n)
        assert len(sequence.pages[0].ids) == pages
