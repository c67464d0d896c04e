"""Arrange a test's results as rows of an HTML table, laid out as in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.grid import GridPlace, GridTable, arranged
from pytest_precision.report.status import worst_status

SCREEN_CHARACTERS = 120
"""Characters of text that a screen holds next to each other."""


class Row(NamedTuple):
    """A row of a table: its labels and the worst test result per column; None for an empty field.

    Every row has all of its labels, each with whether the row above has the same: a filter may hide
    that row.
    """

    labels: list[tuple[str, bool]]
    cells: list[CellResult | None]


class PageGrid(NamedTuple):
    """The table of one parametrized test's results in the HTML report.

    Attributes:
        cells: of the test.
        calm: whether all of them passed.
        row_axes: names of the axes whose values are at the left.
        header: the axes whose values are above, each with its labels and the columns that these
            span.
        rows: from top to bottom.
    """

    cells: Sequence[CellResult]
    calm: bool
    row_axes: list[str]
    header: list[tuple[str, list[tuple[str, int]]]]
    rows: list[Row]


def page_grid(cells: Sequence[CellResult]) -> PageGrid:
    """Arrange the results of one parametrized test as a table for the HTML report."""
    table, cells_by_place = arranged(cells, SCREEN_CHARACTERS)
    order = [*table.headings, *table.rows, *table.columns]
    worst_cell_results = {
        tuple(place[index] for index in order): _worst_cell_result(place_cells)
        for place, place_cells in cells_by_place.items()
    }
    return PageGrid(
        cells,
        all(cell.passing for cell in cells),
        [table.axes[index].name for index in (*table.headings, *table.rows)],
        [
            (table.axes[index].name, [*_labels(table, index, level)])
            for level, index in enumerate(table.columns)
        ],
        _rows(table, worst_cell_results),
    )


def _rows(table: GridTable, worst_cell_results: dict[GridPlace, CellResult]) -> list[Row]:
    rows = []
    above: GridPlace = ()
    for key in table.row_keys:
        labels = [
            (table.axes[index].values[key[level]], above[: level + 1] == key[: level + 1])
            for level, index in enumerate((*table.headings, *table.rows))
        ]
        rows.append(
            Row(labels, [worst_cell_results.get((*key, *column)) for column in table.column_keys])
        )
        above = key
    return rows


def _labels(table: GridTable, index: int, level: int) -> Iterator[tuple[str, int]]:
    """Yield the column labels of one axis; neighbouring columns of equal value share a label."""
    for prefix, group in groupby(table.column_keys, key=lambda key: key[: level + 1]):
        yield table.axes[index].values[prefix[-1]], len(list(group))


def _worst_cell_result(cells: Sequence[CellResult]) -> CellResult:
    status = worst_status(cell.status for cell in cells)
    return next(cell for cell in cells if cell.status == status)
