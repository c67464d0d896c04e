"""Select the cells to run, by axis values, by pairwise coverage and by shard."""

from __future__ import annotations

import hashlib
import heapq
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from itertools import combinations

from pytest_precision.matrix.axes import axis_text
from pytest_precision.matrix.cell import Cell, axes_of

Select = tuple[tuple[str, tuple[str, ...]], ...]
"""(axis, values) pairs, as in `Settings`."""


def matches(cell: Cell, select: Select) -> bool:
    """Return whether a matrix cell has a selected value on each axis of `select`.

    An axis that the cell does not have never matches.
    """
    if not select:
        return True
    axes = axes_of(cell)
    return all(
        axis in axes and axis_text(axes[axis]) in map(axis_text, values) for axis, values in select
    )


def unselectable(select: Select, cells: Iterable[Cell]) -> list[str]:
    """Return an error for each axis or value in --precision-select that no matrix cell has.

    Args:
        select: the selection.
        cells: all collected cells, selected or not.
    """
    if not select:
        return []
    cells = list(cells)
    values_by_axis: dict[str, dict[str, None]] = {}
    for cell in cells:
        for axis, value in axes_of(cell).items():
            values_by_axis.setdefault(axis, {})[axis_text(value)] = None
    wrong = []
    for axis, values in select:
        if axis not in values_by_axis:
            wrong.append(
                f"--precision-select: expected one of the axes {', '.join(values_by_axis)} but got "
                f"{axis}; these are the axes of the collected cells"
            )
        wrong += [
            f"--precision-select: expected {axis} to be one of "
            f"{', '.join(values_by_axis[axis])} but got "
            f"{axis}={value}; these are the values of the collected cells"
            for value in values
            if axis in values_by_axis and axis_text(value) not in values_by_axis[axis]
        ]
    if not wrong and not any(matches(cell, select) for cell in cells):
        together = " and ".join(f"{axis}={','.join(values)}" for axis, values in select)
        wrong.append(
            f"--precision-select: expected a cell with {together} but got none of the "
            f"{len(cells)} collected; each value occurs, but no cell has all of them: drop one"
        )
    return wrong


def covering(cells: Sequence[Cell], coverage: str) -> list[Cell]:
    """Return the matrix cells of a test that `--precision-coverage` keeps, in order.

    Args:
        cells: the selected cells of the test.
        coverage: `full`, `pairwise` or `smoke`.
    """
    if coverage == "smoke":
        return list(cells[:1])
    if coverage == "pairwise":
        # By repr, since 1, 1.0 and True are one value to a set.
        rows = [[repr(value) for value in axes_of(cell).values()] for cell in cells]
        return [cells[index] for index in pairwise(rows)]
    return list(cells)


def in_shard(nodeid: str, shard: tuple[int, int]) -> bool:
    """Return whether this runner's shard includes a test, by a hash of the test's id.

    Args:
        nodeid: pytest's id, the same on every runner.
        shard: index, from 1, and number of shards.
    """
    index, count = shard
    # A checksum would not do: its low bits are linear in the text, and ids differ in few places.
    # The bytes of a file's name, in whatever locale.
    encoded = nodeid.encode("utf-8", "surrogateescape")
    digest = hashlib.blake2b(encoded, digest_size=8).digest()
    return int.from_bytes(digest, "big") % count == index - 1


def pairwise(rows: Sequence[Sequence[Hashable]]) -> list[int]:
    """Choose few rows of a table that cover each pair of values in two columns.

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
    """Return, for each row of axis values, all pairs of its values, each coded as one integer."""
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
