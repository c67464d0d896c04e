"""Filters: radio buttons by outcome and axis value, which need style and no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pytest_precision.report.collect import CellResult
from pytest_precision.report.status import STATUSES

MOST_CHOICES = 12
"""Most values of an axis to choose from; an axis with more has no filter."""


class Button(NamedTuple):
    """One button: its element, its text, and the class of the cells that it shows."""

    anchor: str
    text: str
    shows: str


class ButtonGroup(NamedTuple):
    """Buttons of which one is chosen."""

    name: str
    choices: list[Button]


class Filters:
    """The filters of a page.

    Args:
        cells: all cells of the page.

    Attributes:
        groups: by outcome, by gate and by axis, of those that have something to choose.
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        self._axes = _axes(cells)
        # By number, since a report may come from elsewhere, and its words stay out of the style.
        names = dict.fromkeys(name for cell in cells for name in cell.gates)
        self._gates = {name: number for number, name in enumerate(names)}
        there = {cell.status for cell in cells}
        statuses = [name for name in STATUSES if name in there]
        gates = [Button(f"fg-{n}", name, f"g-{n}") for name, n in self._gates.items()]
        outcomes = [Button(f"f-{n}", STATUSES[n].word, f"s-{n}") for n in statuses]
        axes = [
            ButtonGroup(
                axis, [Button(f"f{place}-{n}", _text(v), f"v{place}-{n}") for v, n in known]
            )
            for place, (axis, known) in enumerate(
                (axis, values.items()) for axis, values in self._axes.items()
            )
        ]
        groups = [ButtonGroup("outcome", outcomes), ButtonGroup("gate", gates), *axes]
        self.groups = [group for group in groups if len(group.choices) > 1]

    def classes(self, cell: CellResult) -> str:
        """Return the classes by which the filters choose a cell."""
        own = [
            f"v{place}-{values[repr(cell.axes[axis])]}"
            for place, (axis, values) in enumerate(self._axes.items())
            if axis in cell.axes
        ]
        gates = (f"g-{self._gates[name]}" for name in cell.gates)
        return " ".join([f"s-{cell.status}", *gates, *own])

    def style(self) -> str:
        """Return the rules that pale or hide what is not chosen."""
        rules = []
        for group in self.groups:
            for choice in group.choices:
                chosen = f"body:has(#{choice.anchor}:checked)"
                rules.append(f"{chosen} td.cell:not(.{choice.shows}){{opacity:.15}}")
                rules.append(f"{chosen} li.cell:not(.{choice.shows}){{display:none}}")
        return "\n".join(rules)


def _axes(cells: Iterable[CellResult]) -> dict[str, dict[str, int]]:
    """Return axis to its values, as `repr`, each with its number."""
    axes: dict[str, dict[str, int]] = {}
    for cell in cells:
        for axis, value in cell.axes.items():
            known = axes.setdefault(axis, {})
            known.setdefault(repr(value), len(known))
    return {axis: values for axis, values in axes.items() if 1 < len(values) <= MOST_CHOICES}


def _text(value: str) -> str:
    return value.strip("'\"")
