"""Pairwise coverage: a small subset of rows that contains every pair of values of all rows."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations


def pairwise(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """Choose a subset of `rows` that covers every pair of values in them.

    A pair is two values in two columns of one row. The choice is greedy and deterministic: it takes
    the row with the most pairs that are not covered yet, on a tie the earlier row. Then it drops
    rows that later choices made superfluous, the last choice first.

    Args:
        rows: rows of equal length, at least 2.

    Returns:
        The indices of the chosen rows, ascending.
    """
    pairs = _pairs(rows)
    chosen = _greedy(pairs)
    covered = Counter(pair for index in chosen for pair in pairs[index])
    for index in chosen[::-1]:
        if all(covered[pair] > 1 for pair in pairs[index]):
            covered.subtract(pairs[index])
            chosen.remove(index)
    return sorted(chosen)


def _pairs(rows: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """Return the pairs of each row as numbers, which hash faster than tuples of tuples."""
    numbers: dict[tuple[int, Hashable], int] = {}
    coded = [[numbers.setdefault(value, len(numbers)) for value in enumerate(row)] for row in rows]
    size = len(numbers)
    return [[a * size + b for a, b in combinations(row, 2)] for row in coded]


def _greedy(pairs: list[list[int]]) -> list[int]:
    # A row's gain can only shrink, so the heap holds upper bounds: the top row is the best one as
    # soon as its bound is exact, and most rows are never looked at again.
    missing = {pair for row in pairs for pair in row}
    heap = [(-len(row), index) for index, row in enumerate(pairs)]
    chosen = []
    while missing:
        bound, index = heapq.heappop(heap)
        gain = len(missing.intersection(pairs[index]))
        if gain == -bound:
            chosen.append(index)
            missing.difference_update(pairs[index])
        elif gain:
            heapq.heappush(heap, (-gain, index))
    return chosen
