"""Checkboxes that filter a page by outcome, gate and axis value, in CSS without a script.

Of one axis, several values may be chosen; without any, all are shown. The script adds what style
cannot do: counts, rows that are hidden, another example in each failure, and an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.status import STATUSES

MOST_CHOICES = 12
"""Most values of an axis to choose from; an axis with more has no filter."""


class FilterGroup(NamedTuple):
    """The checkboxes for one axis: its name, anchor, choices and CSS classes.

    Attributes:
        name: of the axis, as the address of a filter has it.
        anchor: the element.
        choices: the checkboxes in the order of their values: HTML id, text, and the CSS classes of
            the tests that it selects.
        classes: class of some cells to the boxes of which each shows them.
    """

    name: str
    anchor: str
    choices: list[tuple[str, str, str]]
    classes: Mapping[str, list[str]]


class Filters:
    """All filters of the HTML report, which are made from the tests in it.

    Args:
        cells: all cells of the page.

    Attributes:
        groups: by outcome, by gate and by axis, of those that have something to choose.
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        # By number, since a report may come from elsewhere, and its words stay out of the style.
        self._numbers: list[dict[tuple[str, ...], int]] = []
        statuses = {cell.status for cell in cells}
        words = {repr(name): status.word for name, status in STATUSES.items() if name in statuses}
        gates = sorted({name for cell in cells for name in cell.gates})
        self._axes = ["outcome", "gate", *_axes(cells)]
        orders = [words, {repr(gate): gate for gate in gates}, *_axes(cells).values()]
        groups = [self._group(place, cells, order) for place, order in enumerate(orders)]
        self.groups = [group for group in groups if len(group.choices) > 1]

    def _group(
        self, place: int, cells: Sequence[CellResult], order: Mapping[str, str]
    ) -> FilterGroup:
        """Return the checkboxes of one axis, outcome or gate, and number its values for CSS.

        Args:
            place: of the outcome, of the gate or of an axis.
            cells: all cells.
            order: each value, as `repr`, to its text, in the order of the boxes.
        """
        numbers = dict.fromkeys(self._values(cell, place) for cell in cells)
        numbering = {values: number for number, values in enumerate(numbers)}
        self._numbers.append(numbering)
        anchors = {value: f"f{place}-{number}" for number, value in enumerate(order)}
        choices = [
            (
                anchor,
                order[value],
                " ".join(f"v{place}-{n}" for values, n in numbering.items() if value in values),
            )
            for value, anchor in anchors.items()
        ]
        classes = {
            f"v{place}-{number}": [anchors[value] for value in values if value in anchors]
            for values, number in numbering.items()
        }
        return FilterGroup(self._axes[place], f"g{place}", choices, classes)

    def _values(self, cell: CellResult, place: int) -> tuple[str, ...]:
        """Return, as `repr`, a test's values for one filter: status, gates or value of an axis."""
        if place == 0:
            return (repr(cell.status),)
        if place == 1:
            return tuple(map(repr, cell.gates))
        axis = self._axes[place]
        return (repr(cell.axes[axis]),) if axis in cell.axes else ()

    def classes(self, cell: CellResult) -> str:
        """Return a test's CSS classes, by which the page's filters select it."""
        chosen = (
            f"v{place}-{numbering[self._values(cell, place)]}"
            for place, numbering in enumerate(self._numbers)
        )
        return " ".join([f"s-{cell.status}", *chosen])

    def style(self) -> str:
        """Return the CSS rules that dim or hide tests that no checked box selects."""
        rules = []
        for group in self.groups:
            for name, anchors in group.classes.items():
                unchosen = "".join(f":not(:has(#{anchor}:checked))" for anchor in anchors)
                chosen = f"body:has(#{group.anchor} :checked){unchosen}"
                rules.append(f"{chosen} td.cell.{name}{{opacity:.15}}")
                rules.append(f"{chosen} li.cell.{name}{{display:none}}")
        return "\n".join(rules)


def _axes(cells: Iterable[CellResult]) -> dict[str, dict[str, str]]:
    """Return, for each axis to filter by, its values in order, each as `repr` and as shown text."""
    axes: dict[str, dict[str, object]] = {}
    for cell in cells:
        for axis, value in cell.axes.items():
            axes.setdefault(axis, {}).setdefault(repr(value), value)
    return {
        axis: {shown: shown.strip("'\"") for shown, _ in sorted(values.items(), key=_order)}
        for axis, values in axes.items()
        if 1 < len(values) <= MOST_CHOICES
    }


def _order(pair: tuple[str, object]) -> tuple[object, ...]:
    """Return a sort key for values: numbers by size, also inside text."""
    shown, value = pair
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return (0, value)
    parts = re.findall(r"[0-9]+|[^0-9]+", shown)
    return (
        1,
        [(not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts],
    )
