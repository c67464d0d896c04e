"""Compute line plots over train steps as coordinates, which the template draws as SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

# Size and margins of a plot, in units of its view box.
PLOT_WIDTH = 380
PLOT_HEIGHT = 150
LEFT_MARGIN = 60
RIGHT_MARGIN = 10
TOP_MARGIN = 10
BOTTOM_MARGIN = 24

MOST_POINTS = 200
"""Points of a curve, and rows of a table; a long run is shown at every n-th step."""

# Most labels at an axis.
X_TICKS = 6
Y_TICKS = 5

Column = Sequence[float | None]


class Bar(NamedTuple):
    """One bar of a histogram, as an SVG rectangle."""

    x: float
    y: float
    width: float
    height: float


class Plot(NamedTuple):
    """One plot in SVG coordinates: its title, ticks, curves and bars.

    Attributes:
        title: what is shown.
        words: what can be seen, for those who do not see it.
        x_ticks, y_ticks: labels, each with its position.
        curves: lines by name, if it is a plot of lines; the points of each part as SVG text.
        bars: bars, if it is a histogram.
        head: header of the table of figures.
        rows: its rows.
    """

    title: str
    words: str
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    curves: Mapping[str, list[str]]
    bars: list[Bar]
    head: list[str]
    rows: list[list[str]]


def lines(
    title: str, steps: Sequence[int], columns: Mapping[str, Column], *, logarithmic: bool = False
) -> Plot | None:
    """Return a line plot of named values over train steps; None if it would be empty.

    Args:
        title: what the columns are.
        steps: train steps.
        columns: name to one value per step.
        logarithmic: whether the scale is; then only values above 0 are points.
    """
    stride = 1 + len(steps) // MOST_POINTS
    steps = steps[::stride]
    columns = {name: column[::stride] for name, column in columns.items()}
    scale = math.log10 if logarithmic else float
    shown = {
        name: [scale(v) if v is not None and (v > 0 or not logarithmic) else None for v in column]
        for name, column in columns.items()
    }
    values = [value for column in shown.values() for value in column if value is not None]
    if not values or not any(value for column in columns.values() for value in column):
        return None
    marks = _decades(values) if logarithmic else _even(values)
    low, high = min(marks), max(marks)
    x, y = (
        onto_axis(steps[0], steps[-1], LEFT_MARGIN, PLOT_WIDTH - RIGHT_MARGIN),
        onto_axis(low, high, PLOT_HEIGHT - BOTTOM_MARGIN, TOP_MARGIN),
    )
    unscaled: Callable[[float], float] = (lambda v: 10**v) if logarithmic else float
    every = f", every {stride} steps" if stride > 1 else ""
    return Plot(
        title + every,
        "; ".join(_words(name, steps, column) for name, column in columns.items()),
        [(x(step), str(step)) for step in _some(steps)],
        [(y(value), f"{unscaled(value):.3g}") for value in marks],
        {name: _points(steps, column, x, y) for name, column in shown.items()},
        [],
        ["step", *columns],
        [
            [str(step), *("" if v is None else f"{v:.6g}" for v in row)]
            for step, *row in zip(steps, *columns.values(), strict=True)
        ],
    )


def onto_axis(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    """Return a function that interpolates linearly: `low` gives `start`, and `high` gives `end`."""
    length = high - low
    return lambda value: round(start + (end - start) * ((value - low) / length if length else 0), 1)


def _decades(values: Sequence[float]) -> list[float]:
    """Return a few evenly spaced integers that span all values, which are exponents of ten."""
    low, high = math.floor(min(values)), math.ceil(max(values))
    high = max(high, low + 1)
    stride = -(-(high - low) // (Y_TICKS - 1))
    return [float(low + n * stride) for n in range(-(-(high - low) // stride) + 1)]


def _even(values: Sequence[float]) -> list[float]:
    """Return a few evenly spaced round numbers that span all values, for use as axis ticks."""
    low, high = min(values), max(values)
    if low == high:  # a flat curve lies in the middle
        low, high = low - abs(low) / 2 - 1e-9, high + abs(high) / 2 + 1e-9
    rough = (high - low) / (Y_TICKS - 2)
    unit = 10.0 ** math.floor(math.log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [step * n for n in range(first, last + 1)]


def _some(steps: Sequence[int]) -> list[int]:
    """Return the first and the last step and a few between them, as axis ticks."""
    last = len(steps) - 1
    number = min(last, X_TICKS - 1)
    return [steps[round(n * last / number)] for n in range(number)] + [steps[last]]


def _points(
    steps: Sequence[int],
    column: Column,
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    """Return a curve as SVG point lists; the curve is split where values are missing."""
    parts: list[list[str]] = [[]]
    for step, value in zip(steps, column, strict=True):
        if value is None:
            parts.append([])
        else:
            parts[-1].append(f"{x(step)},{y(value)}")
    # A line of one point is drawn as a dot, which needs some length.
    return [" ".join(part if len(part) > 1 else [*part, *part]) for part in parts if part]


def _words(name: str, steps: Sequence[int], column: Column) -> str:
    points = [(step, v) for step, v in zip(steps, column, strict=True) if v is not None]
    if not points:
        return f"{name}: no figure"
    (first, start), (last, end) = points[0], points[-1]
    return f"{name}: {start:.3g} at step {first}, {end:.3g} at step {last}"
