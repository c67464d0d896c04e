"""Find axis values that failing tests have in common and that no passing test has.

Every statement is true of the cells as they ended; none is a guess. First, one statement is sought
for all failing cells: the fewest axes whose values in failing cells exclude every passing cell. If
there are no such axes, the cells are split: greedily, by the axis values that describe the most
failing cells and no passing one. A statement must name fewer values than it describes cells.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

from pytest_precision.report.cell_result import CellResult

MAX_CONDITIONS = 3
"""Most axes in one statement; more would name a cell rather than summarize."""

MAX_VALUES = 3
"""Most values of one axis in a statement."""

AxisValues = tuple["str | None", ...]

TEST = "test"
"""The name under which the test itself counts as an axis."""


class Condition(NamedTuple):
    """An axis with the values that failing tests have on it, as `repr` text.

    The values are texts because 1, 1.0 and True are equal and yet different values of an axis.
    """

    axis: str
    values: tuple[str, ...]

    def holds(self, traits: Mapping[str, str]) -> bool:
        """Return whether a test's axis values satisfy the condition."""
        return traits.get(self.axis) in self.values

    def __str__(self) -> str:
        *first, last = [value.strip("'") for value in self.values]
        return f"{self.axis}={', '.join(first)} or {last}" if first else f"{self.axis}={last}"


class Shared(NamedTuple):
    """A group of failing tests, and the axis values that they share.

    Attributes:
        cells: failing cells, all of which meet all conditions.
        conditions: conditions that no passing cell meets together; empty if none were found.
        alone: whether no passing cell meets even one of the conditions.
    """

    cells: tuple[CellResult, ...]
    conditions: tuple[Condition, ...] = ()
    alone: bool = False

    def holds(self, cell: CellResult) -> bool:
        """Return whether a test's axis values satisfy all conditions."""
        having = traits(cell)
        return all(condition.holds(having) for condition in self.conditions)

    def statement(self, failing: Sequence[CellResult]) -> str:
        """Return the conditions as a sentence, such as `all 4 failing cells have precision=fp8`.

        It is empty without conditions.

        Args:
            failing: all failing cells, `cells` among them.
        """
        if not self.conditions:
            return ""
        count = len(failing)
        having = sum(map(self.holds, failing))
        everyone = "both" if count == 2 else f"all {count}"
        who = everyone if having == count else f"{having} of {count}"
        number = len(self.conditions)
        which = ("", " either", " any of these") if self.alone else ("", " both", " all three")
        conditions = " and ".join(map(str, self.conditions))
        return f"{who} failing cells have {conditions}; no passing cell has{which[number - 1]}"


def traits(cell: CellResult) -> dict[str, str]:
    """Return a test's axis values as `repr` text, and the test's name as a further axis."""
    return {TEST: cell.test} | {name: repr(value) for name, value in cell.axes.items()}


def explain(failing: Sequence[CellResult], passing: Sequence[CellResult]) -> list[Shared]:
    """Group failing tests by axis values that no passing test has; the unexplained come last."""
    if not passing:
        return [Shared(tuple(failing))]
    without = [traits(cell) for cell in passing]
    whole = _whole(failing, without)
    if whole is not None:
        return [whole]
    parts: list[Shared] = []
    remaining_cell_results = list(failing)
    taken_axis_values: dict[tuple[str, ...], set[AxisValues]] = {}
    while (part := _largest_part(remaining_cell_results, without, taken_axis_values)) is not None:
        parts.append(part)
        remaining_cell_results = [cell for cell in remaining_cell_results if not part.holds(cell)]
    return [*parts, Shared(tuple(remaining_cell_results))] if remaining_cell_results else parts


def _whole(failing: Sequence[CellResult], passing: Sequence[Mapping[str, str]]) -> Shared | None:
    having = [traits(cell) for cell in failing]
    conditions: list[Condition] = []
    # Per condition, the passing cells that do not meet it, one bit per cell.
    outside: list[int] = []
    for axis in having[0]:
        if all(axis in cell for cell in having):
            values = tuple(dict.fromkeys(cell[axis] for cell in having))
            condition = Condition(axis, values)
            misses = sum(1 << i for i, cell in enumerate(passing) if not condition.holds(cell))
            if misses and len(values) <= MAX_VALUES and len(values) < len(failing):
                conditions.append(condition)
                outside.append(misses)
    everyone = (1 << len(passing)) - 1
    alone = [c for c, misses in zip(conditions, outside, strict=True) if misses == everyone]
    fewest = min((len(condition.values) for condition in alone), default=0)
    best = tuple(c for c in alone if len(c.values) == fewest)[:MAX_CONDITIONS]
    if best:
        return Shared(tuple(failing), best, alone=True)
    for size in range(2, MAX_CONDITIONS + 1):
        for chosen in combinations(range(len(conditions)), size):
            if sum(len(conditions[index].values) for index in chosen) >= len(failing):
                continue
            misses = 0
            for index in chosen:
                misses |= outside[index]
            if misses == everyone:
                return Shared(tuple(failing), tuple(conditions[index] for index in chosen))
    return None


def _largest_part(
    failing: Sequence[CellResult],
    passing: Sequence[Mapping[str, str]],
    taken_axis_values: dict[tuple[str, ...], set[AxisValues]],
) -> Shared | None:
    """Return the largest group of failing tests with axis values that no passing test has.

    Args:
        failing: the cells that are in no part yet.
        passing: traits of the passing cells.
        taken_axis_values: axes to the known values that passing cells have on them.
    """
    having = [traits(cell) for cell in failing]
    axes = list(dict.fromkeys(axis for cell in having for axis in cell))
    best: tuple[int, tuple[Condition, ...]] = (0, ())
    for size in range(1, MAX_CONDITIONS + 1):
        for chosen in combinations(axes, size):
            if chosen not in taken_axis_values:
                taken_axis_values[chosen] = {
                    tuple(cell.get(axis) for axis in chosen) for cell in passing
                }
            counts = Counter(
                tuple(cell[axis] for axis in chosen)
                for cell in having
                if all(axis in cell for axis in chosen)
            )
            for values, count in counts.items():
                if values not in taken_axis_values[chosen] and count - size > best[0]:
                    conditions = zip(chosen, values, strict=True)
                    best = (count - size, tuple(Condition(a, (v,)) for a, v in conditions))
    if not best[1]:
        return None
    cells = [
        cell
        for cell, mine in zip(failing, having, strict=True)
        if all(condition.holds(mine) for condition in best[1])
    ]
    return Shared(tuple(cells), best[1], alone=len(best[1]) == 1)
