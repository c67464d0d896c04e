"""Arrange a test's results as a table of marks over its axes, in the smallest possible layout.

    primary_weight of bf16, grad_accum_fusion of False        <- `fixed`: axes of one value
                      sequence  train4  train2-eval-train2    <- column axes, none to two
                    world_size  1 2     1 2
      precision  glu_interleave                               <- row axes
      bf16       0              . .     . F
                 32             . .       F                   <- no such cell: blank

Of all ways to assign the axes to rows and columns, the one with the smallest area is used: it keeps
marks together, which makes a pattern of failures visible, and puts long values into rows. If no
table is narrow enough, the row axes with the longest values become headings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import permutations
from typing import NamedTuple

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.status import STATUSES, worst_status

INDENT = 2
GAP = 2

Line = list[tuple[str, str]]
"""Pieces of text, each with the status that colours it; an empty status means no colour."""


class Axis(NamedTuple):
    """One axis of a test: its name and its values as text, in the order of the matrix."""

    name: str
    values: list[str]

    @property
    def width(self) -> int:
        """Return the length of the longest value's text."""
        return max(map(len, self.values))


GridPlace = tuple[int, ...]
"""Place of one cell: for each axis the position of its value."""


def by_test(cells: Iterable[CellResult]) -> list[list[CellResult]]:
    """Group results by test, for one table each; results without known axes are left out."""
    tests: dict[str, list[CellResult]] = {}
    for cell in cells:
        # The axes of a cell are unknown after a worker crash.
        if cell.axes:
            tests.setdefault(cell.test, []).append(cell)
    return list(tests.values())


def fixed(cells: Sequence[CellResult]) -> str:
    """Return name and value of each axis that has a single value in all cells, as text."""
    axes = [axis for axis in _axes(cells)[0] if len(axis.values) == 1]
    return ", ".join(f"{axis.name}={axis.values[0]}" for axis in axes)


def grid(cells: Sequence[CellResult], width: int) -> list[Line]:
    """Return the lines of a test's table of results; a single status mark if no axis varies.

    Args:
        cells: cells of one test; of several at one place (repeats) the worst is shown.
        width: width of the terminal in characters; a table that cannot be so narrow is wider.
    """
    table, cells_by_place = arranged(cells, width - INDENT)
    statuses = {
        place: [cell.status for cell in place_cells]
        for place, place_cells in cells_by_place.items()
    }
    return table.lines(
        {place: worst_status(place_statuses) for place, place_statuses in statuses.items()}
    )


def arranged(
    cells: Sequence[CellResult], width: int
) -> tuple[GridTable, dict[GridPlace, list[CellResult]]]:
    """Return the layout of a test's table, and the results at each of its positions."""
    axes, places = _axes(cells)
    varying = [index for index, axis in enumerate(axes) if len(axis.values) > 1]
    cells_by_place: dict[GridPlace, list[CellResult]] = {}
    for cell, place in zip(cells, places, strict=True):
        cells_by_place.setdefault(tuple(place[index] for index in varying), []).append(cell)
    return _smallest_grid_table(
        [axes[index] for index in varying], cells_by_place, width
    ), cells_by_place


def _axes(cells: Sequence[CellResult]) -> tuple[list[Axis], list[GridPlace]]:
    """Return the axes of a test with their values, and the position of each result on them."""
    ordered_cell_results = sorted(cells, key=lambda cell: cell.number)
    names = list(dict.fromkeys(name for cell in ordered_cell_results for name in cell.axes))
    # Values are compared by repr: 1, 1.0 and True are equal and yet different values of an axis.
    values: list[dict[str, int]] = [{} for _ in names]
    for cell in ordered_cell_results:
        for numbers, value in zip(values, _values(cell, names), strict=True):
            numbers.setdefault(value, len(numbers))
    axes = [
        Axis(name, [_text(value) for value in numbers])
        for name, numbers in zip(names, values, strict=True)
    ]
    return axes, [
        tuple(numbers[value] for numbers, value in zip(values, _values(cell, names), strict=True))
        for cell in cells
    ]


def _values(cell: CellResult, names: Iterable[str]) -> list[str]:
    return [repr(cell.axes[name]) if name in cell.axes else "-" for name in names]


def _text(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') else value


def _smallest_grid_table(axes: Sequence[Axis], marks: Iterable[GridPlace], width: int) -> GridTable:
    # Two axes are easiest to read with one across and one down.
    most = 1 if len(axes) <= 2 else 2
    across = [c for size in range(most + 1) for c in permutations(range(len(axes)), size)]
    tables = [GridTable(axes, marks, (), _without(axes, columns), columns) for columns in across]
    fitting = [table for table in tables if table.width <= width]
    if fitting:
        # A table narrower than a quarter of the screen is no better, but a shorter one is.
        return min(fitting, key=lambda table: max(table.width, width // 4) * table.height)
    for columns in across:
        rows = _without(axes, columns)
        by_width = sorted(rows, key=lambda index: -axes[index].width)
        for count in range(1, len(rows) + 1):
            headings = by_width[:count]
            rest = _without(axes, (*columns, *headings))
            tables.append(GridTable(axes, marks, headings, rest, columns))
    # Headings have a fixed width, so only lines can be saved.
    narrow_grid_tables = [table for table in tables if table.width <= width] or tables
    fitting = [
        table for table in narrow_grid_tables if table.heading_width <= width
    ] or narrow_grid_tables
    return min(fitting, key=lambda table: (table.height, table.width))


def _without(axes: Sequence[Axis], chosen: Sequence[int]) -> list[int]:
    return [index for index in range(len(axes)) if index not in chosen]


class GridTable:
    """A way to lay out a table of results: which axes are headings, rows and columns.

    Args:
        axes: the axes with more than one value.
        marks: the places that have a cell.
        headings, rows, columns: positions in `axes`, each exactly once in all three.
    """

    def __init__(
        self,
        axes: Sequence[Axis],
        marks: Iterable[GridPlace],
        headings: Sequence[int],
        rows: Sequence[int],
        columns: Sequence[int],
    ) -> None:
        self.axes = axes
        self.headings = headings
        self.rows = rows
        self.columns = columns
        self.shift = INDENT if headings else 0
        self.row_keys = sorted({_pick(place, (*headings, *rows)) for place in marks})
        self.column_keys = sorted({_pick(place, columns) for place in marks})
        self.row_widths = [max(len(axes[index].name), axes[index].width) for index in rows]
        names = [len(axes[index].name) for index in columns]
        self.left = max([sum(self.row_widths) + GAP * (len(rows) - 1), *names, 0])
        self.starts, self.right = self._starts()
        self.groups = {key[: len(headings)] for key in self.row_keys} if headings else set()

    def _starts(self) -> tuple[list[int], int]:
        """Return the offset of each column from the row labels, and the columns' total width."""
        start, end = 0, 0
        starts: list[int] = []
        outer_grid_place: GridPlace = ()
        for key in self.column_keys:
            if starts:
                end += 1 if len(key) > 1 and key[:1] == outer_grid_place else GAP
            if len(key) > 1 and key[:1] != outer_grid_place:
                # The label of a group may be longer than its columns.
                end = max(end, start + GAP + self._label(0, outer_grid_place)) if starts else end
                start = end
                outer_grid_place = key[:1]
            starts.append(end)
            end += self._label(len(key) - 1, key[-1:])
        if outer_grid_place:
            end = max(end, start + self._label(0, outer_grid_place))
        return starts, end

    def _label(self, level: int, value: GridPlace) -> int:
        """Return the width in characters of an axis value above columns; 1 if `value` is empty."""
        return len(self.axes[self.columns[level]].values[value[0]]) if value else 1

    @property
    def width(self) -> int:
        """The table's width in characters, without the outer indentation."""
        return self.shift + self.left + GAP + self.right

    @property
    def heading_width(self) -> int:
        """The width in characters of the longest possible heading between rows."""
        widths = [len(self.axes[i].name) + 1 + self.axes[i].width for i in self.headings]
        return sum(widths) + len(", ") * (len(widths) - 1)

    @property
    def height(self) -> int:
        """The table's height in lines."""
        return len(self.columns) + bool(self.rows) + len(self.groups) + len(self.row_keys)

    def lines(self, marks: dict[GridPlace, str]) -> list[Line]:
        """Return the lines of the table from the status at each position."""
        lines = [self._header(level) for level in range(len(self.columns))]
        if self.rows:
            lines.append(
                self._line(self._labels([self.axes[index].name for index in self.rows]).rstrip())
            )
        order = (*self.headings, *self.rows, *self.columns)
        by_key = {_pick(place, order): status for place, status in marks.items()}
        split = len(self.headings)
        previous_grid_place: GridPlace = ()
        for key in self.row_keys:
            if split and key[:split] != previous_grid_place[:split]:
                lines.append([(" " * INDENT + self._heading(key), "")])
                previous_grid_place = ()
            lines.append(self._row(key, previous_grid_place[split:], by_key))
            previous_grid_place = key
        return lines

    def _header(self, level: int) -> Line:
        axis = self.axes[self.columns[level]]
        text = axis.name.rjust(self.left)
        previous_grid_place: GridPlace = ()
        for key, start in zip(self.column_keys, self.starts, strict=True):
            if key[: level + 1] != previous_grid_place:
                text = text.ljust(self.left + GAP + start) + axis.values[key[level]]
                previous_grid_place = key[: level + 1]
        return self._line(text)

    def _heading(self, key: GridPlace) -> str:
        pairs = zip(self.headings, key, strict=False)
        return ", ".join(f"{self.axes[i].name}={self.axes[i].values[value]}" for i, value in pairs)

    def _row(self, key: GridPlace, previous: GridPlace, by_key: dict[GridPlace, str]) -> Line:
        row_key = key[len(self.headings) :]
        labels = [
            # A value is shown once for consecutive rows that share it and all values left of it.
            "" if previous[: level + 1] == row_key[: level + 1] else self.axes[index].values[value]
            for level, (index, value) in enumerate(zip(self.rows, row_key, strict=True))
        ]
        line = self._line(self._labels(labels).ljust(self.left + GAP))
        at = 0
        for column, start in zip(self.column_keys, self.starts, strict=True):
            status = by_key.get((*key, *column))
            if status is not None:
                line += [(" " * (start - at), ""), (STATUSES[status].mark, status)]
                at = start + 1
        return line

    def _line(self, text: str) -> Line:
        return [(" " * (INDENT + self.shift) + text, "")]

    def _labels(self, labels: Sequence[str]) -> str:
        padded = zip(labels, self.row_widths, strict=True)
        return (" " * GAP).join(label.ljust(width) for label, width in padded)


def _pick(place: GridPlace, indices: Sequence[int]) -> GridPlace:
    return tuple(place[index] for index in indices)
