"""Arrange a test's results as rows of an HTML table, laid out as in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.grid import GridPlace, GridTable, arranged, fixed
from pytest_precision.report.status import STATUSES, worst_status

SCREEN_CHARACTERS = 120
"""Characters of text that a screen holds next to each other."""


class Label(NamedTuple):
    """The label of one or more table columns: an axis value, and how many columns it spans."""

    text: str
    span: int


class RowLabel(NamedTuple):
    """The label of a table row: an axis value, and whether the row above has the same.

    Every row has all of its labels, since a filter may hide the row above.
    """

    text: str
    repeated: bool


class Mark(NamedTuple):
    """One position of a table of results: status, tooltip and link.

    Attributes:
        status: that of the worst cell there.
        sign: its character.
        words: the status and the values of the axes.
        classes: what the filters choose by.
        target: the element that tells more of the cell; empty for none.
    """

    status: str
    sign: str
    words: str
    classes: str
    target: str


class Row(NamedTuple):
    """A table row: its labels and its results, None at a place without a test."""

    labels: list[RowLabel]
    marks: list[Mark | None]


class PageGrid(NamedTuple):
    """The table of one parametrized test's results in the HTML report.

    Attributes:
        test: node id without parameters.
        fixed: axes that have one value, as `name=value`.
        size: number of cells.
        calm: whether all cells passed.
        row_axes: names of the axes whose values are at the left.
        header: the axes whose values are above, each with its labels.
        rows: from top to bottom.
    """

    test: str
    fixed: str
    size: int
    calm: bool
    row_axes: list[str]
    header: list[tuple[str, list[Label]]]
    rows: list[Row]


def page_grid(
    cells: Sequence[CellResult],
    target: Callable[[CellResult], str],
    classes: Callable[[CellResult], str],
) -> PageGrid:
    """Arrange the results of one parametrized test as a table for the HTML report.

    Args:
        cells: cells of one test.
        target: the element that tells more of a cell.
        classes: what the filters choose a cell by.
    """
    table, found = arranged(cells, SCREEN_CHARACTERS)
    order = [*table.headings, *table.rows, *table.columns]
    marks = {
        tuple(place[index] for index in order): _mark(own, target, classes)
        for place, own in found.items()
    }
    return PageGrid(
        cells[0].test,
        ", ".join(f"{name}={value}" for name, value in fixed(cells)),
        len(cells),
        all(cell.passing for cell in cells),
        [table.axes[index].name for index in (*table.headings, *table.rows)],
        [
            (table.axes[index].name, [*_labels(table, index, level)])
            for level, index in enumerate(table.columns)
        ],
        _rows(table, marks),
    )


def _rows(table: GridTable, marks: dict[GridPlace, Mark]) -> list[Row]:
    rows = []
    above: GridPlace = ()
    for key in table.row_keys:
        labels = [
            RowLabel(table.axes[index].values[key[level]], above[: level + 1] == key[: level + 1])
            for level, index in enumerate((*table.headings, *table.rows))
        ]
        rows.append(Row(labels, [marks.get((*key, *column)) for column in table.column_keys]))
        above = key
    return rows


def _labels(table: GridTable, index: int, level: int) -> Iterator[Label]:
    """Yield the column labels of one axis; neighbouring columns of equal value share a label."""
    for prefix, group in groupby(table.column_keys, key=lambda key: key[: level + 1]):
        yield Label(table.axes[index].values[prefix[-1]], len(list(group)))


def _mark(
    cells: Sequence[CellResult],
    target: Callable[[CellResult], str],
    classes: Callable[[CellResult], str],
) -> Mark:
    status = worst_status(cell.status for cell in cells)
    cell = next(cell for cell in cells if cell.status == status)
    values = ", ".join(f"{name} {value}" for name, value in cell.axes.items())
    shown = STATUSES[status]
    return Mark(status, shown.mark, f"{shown.word}: {values}", classes(cell), target(cell))
