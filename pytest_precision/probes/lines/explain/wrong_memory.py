"""Keep which memory of a rank holds wrong values, and the operations that made them."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import torch

from pytest_precision.probes.lines.operations import Value

MOST_ROOTS = 8
"""First wrong operations that a value is followed back to."""

Roots = frozenset[int]
RIGHT: Roots = frozenset()


class Region(NamedTuple):
    """A byte range of a storage with wrong values, and the operations that made them wrong.

    Attributes:
        start: its first byte in the storage.
        stop: the byte after its last one.
        roots: the operations that made it wrong.
        apart: the operations since which it has no counterpart in the reference, whether it is
            right or not: what has put right values into another order, and what computed with them.
    """

    start: int
    stop: int
    roots: Roots
    apart: tuple[int, ...] = ()


class WrongMemory:
    """The parts of a rank's memory that hold wrong values: such as the reference never computes."""

    def __init__(self) -> None:
        self._regions: dict[int, list[Region]] = defaultdict(list)

    def roots(self, value: Value) -> Roots:
        """Return the operations that made the wrong values in the memory that a value covers."""
        return RIGHT.union(*(region.roots for region in self._touched(value)))

    def apart(self, value: Value) -> tuple[int, ...]:
        """Return the operations whose results in a value's memory match no reference value."""
        return tuple(
            sorted({operation for region in self._touched(value) for operation in region.apart})
        )

    def put(self, value: Value, roots: Roots, apart: tuple[int, ...]) -> None:
        """Mark a value's memory as wrong or unmatched, with the operations that made it so."""
        before = self.roots(value), self.apart(value)
        self.clear(value)
        roots = frozenset(sorted(roots | before[0])[:MOST_ROOTS])
        self._regions[value.storage].append(Region(*value.span, roots, apart or before[1]))

    def clear(self, value: Value) -> None:
        """Mark the memory that a value covers as right again."""
        start, stop = value.span
        if value.storage in self._regions and _is_dense(value):
            self._regions[value.storage] = [
                region
                for region in self._regions[value.storage]
                if region.start < start or region.stop > stop
            ]

    def overwrite_right(self, value: Value) -> None:
        """Mark a value's memory as right; blame no operation for unmatched values in its storage.

        What has none in the reference may be right, too.
        """
        self.clear(value)
        if value.storage in self._regions:
            self._regions[value.storage] = [
                region._replace(roots=RIGHT) if region.apart else region
                for region in self._regions[value.storage]
            ]

    def _touched(self, value: Value) -> list[Region]:
        start, stop = value.span
        regions = self._regions.get(value.storage, ())
        return [region for region in regions if region.start < stop and start < region.stop]


def _is_dense(value: Value) -> bool:
    """Return whether a value fills its memory without gaps, unlike a slice of columns."""
    start, stop = value.span
    size: int = getattr(torch, value.dtype).itemsize
    return value.elements * size == stop - start
