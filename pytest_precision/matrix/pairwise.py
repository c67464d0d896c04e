"""Pairwise coverage: few rows in which every pair of values occurs that occurs in all of them."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import combinations


def pairwise(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """Indices of a subset of `rows`, ascending, that covers every pair of values in them.

    A pair is two values in two columns of one row. Greedy: the row with the most pairs that are
    not covered yet, the earlier row where two have as many; then the rows that later choices made
    superfluous are dropped, the last choice first. Deterministic.

    Args:
        rows: all of one length, at least 2.
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
    """The pairs of each row as numbers, which hash and compare faster than tuples of tuples."""
    numbers: dict[tuple[int, Hashable], int] = {}
    coded = [[numbers.setdefault(value, len(numbers)) for value in enumerate(row)] for row in rows]
    size = len(numbers)
    return [[a * size + b for a, b in combinations(row, 2)] for row in coded]


def _greedy(pairs: list[list[int]]) -> list[int]:
    # A row's gain only ever shrinks, so what stands in the heap is an upper bound: the top row is
    # the best one as soon as its bound is exact, and most rows are never looked at again.
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
