"""Where keys and values lie: for one layer, in a page, kv head after kv head, each K then V, f16.

K is [dim][slot], so that 16 slots' scores are one register; V is [slot][dim], in columns of 64
dims one after another, so that a pass over a column reads straight on.
"""

from __future__ import annotations

from typing import Any

from satchel.lang.trace import Row, V, index

PAGE = 64
"""Slots of a page; part of the numerics: attention reduces a page at a time."""

COLUMN = 64


def head_bytes(head_dim: int) -> int:
    """K and V of one kv head in one page."""
    return 2 * head_dim * PAGE * 2


def page_bytes(n_kv: int, head_dim: int) -> int:
    return n_kv * head_bytes(head_dim)


def key_offset(dim: int, slot: Any) -> Any:
    """Bytes from a head's place to K[dim][slot]."""
    return slot * 2 + dim * PAGE * 2


def column_offset(dim: int, head_dim: int) -> tuple[int, int]:
    """Where the column of V that holds a dim begins, and its dims."""
    first = dim // COLUMN * COLUMN
    return head_dim * PAGE * 2 + first * PAGE * 2, min(COLUMN, head_dim - first)


def value_offset(dim: int, slot: Any, head_dim: int) -> Any:
    """Bytes from a head's place to V[slot][dim]."""
    begin, width = column_offset(dim, head_dim)
    return slot * (2 * width) + (begin + 2 * (dim % COLUMN))


def page_address(kv: Row, tables: Row, sequence: V, position: V, max_pages: V, n_bytes: int) -> Row:
    """The page of a sequence's position; n_bytes: of a page of this layer."""
    return kv.past(index(tables[sequence * max_pages + position // PAGE]) * n_bytes)
