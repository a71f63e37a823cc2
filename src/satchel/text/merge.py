"""The one algorithm under every tokenizer here: merge neighbours, the best-ranked pair first.

Byte-pair encoding (Sennrich et al., 2016, https://arxiv.org/abs/1508.07909) and SentencePiece's
variant of it differ only in how a pair is ranked, so the rank is an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Rank = Callable[[str, str], float | None]
"""How early two neighbouring pieces merge: lower is earlier, None is never."""


def merge(word: str, rank: Rank) -> list[str]:
    """The pieces of `word`: its characters, merged until no pair of neighbours has a rank.

    Of equal ranks the leftmost goes first. O(n log n).
    """
    n = len(word)
    ends = list(
        range(1, n + 1)
    )  # where the piece that starts here ends; 0 once its left neighbour took it in
    starts_before = list(range(-1, n))  # where the piece before the one that starts here starts
    heap: list[tuple[float, int, int, int]] = []
    for left in range(n - 1):
        score = rank(word[left], word[left + 1])
        if score is not None:
            heap.append((score, left, left + 1, left + 2))
    heapify(heap)

    while heap:
        _, left, middle, end = heappop(heap)
        if ends[left] != middle or ends[middle] != end:
            continue  # one of the two has been merged into something else since
        ends[left], ends[middle] = end, 0
        if end < n:
            starts_before[end] = left
            score = rank(word[left:end], word[end : ends[end]])
            if score is not None:
                heappush(heap, (score, left, end, ends[end]))
        if left > 0:
            before = starts_before[left]
            score = rank(word[before:left], word[left:end])
            if score is not None:
                heappush(heap, (score, before, left, end))

    pieces: list[str] = []
    start = 0
    while start < n:
        pieces.append(word[start : ends[start]])
        start = ends[start]
    return pieces
