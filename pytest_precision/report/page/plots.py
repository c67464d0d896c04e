"""Plots: curves and a histogram of one check as plain figures, which the template draws as SVG.

A plot is for the eye; the same figures stand below it as a table, for everyone else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

LEFT, RIGHT, TOP, BOTTOM, WIDTH, HEIGHT = 60, 10, 10, 24, 380, 150
"""Margins and size of a plot, in units of its view box."""

MOST_POINTS = 200
"""Points of a curve, and rows of a table; a long run is shown at every n-th step."""

Column = Sequence[float | None]


class Curve(NamedTuple):
    """One line of a plot: its name, and the points of its parts as text."""

    name: str
    points: list[str]


class Bar(NamedTuple):
    """One bar of a histogram."""

    x: float
    y: float
    width: float
    height: float


class Tick(NamedTuple):
    """A label at an axis, and its place on that axis."""

    at: float
    text: str


class Plot(NamedTuple):
    """One plot.

    Attributes:
        title: what is shown.
        words: what can be seen, for those who do not see it.
        x_ticks, y_ticks: labels.
        curves: lines, if it is a plot of lines.
        bars: bars, if it is a histogram.
        head: header of the table of figures.
        rows: its rows.
    """

    title: str
    words: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[Curve]
    bars: list[Bar]
    head: list[str]
    rows: list[list[str]]


def plots(entry: Mapping[str, Any]) -> list[Plot]:
    """Return the plots of one check; none where it has nothing to plot."""
    curves = entry.get("curves")
    found = [_divergence(entry)]
    if curves:
        found += [
            lines("Loss", curves["step"], _sides(curves["loss"])),
            lines("Lost updates, share", curves["step"], _sides(curves["lost_updates"])),
        ]
    if "histogram" in entry:
        found.append(_histogram(entry["histogram"]))
    return [plot for plot in found if plot is not None]


def _divergence(entry: Mapping[str, Any]) -> Plot | None:
    """Plot how far the two sides are apart, step by step, on a logarithmic scale."""
    spread = entry.get("spread", {"step": [], "operation": [], "kinds": {}})
    at = [n for n, operation in enumerate(spread["operation"]) if operation == "train"]
    steps = [spread["step"][n] for n in at]
    found = {}
    for kind in ("loss", "reduced_grad", "master", "param"):
        column = spread["kinds"].get(kind, {}).get("rel_l2")
        if column:
            found[kind] = [_finite(column[n]) for n in at]
    return lines("Divergence, relative L2 error", steps, found, logarithmic=True)


def _sides(columns: Mapping[str, Sequence[Any]]) -> dict[str, Column]:
    return {side: [_finite(value) for value in columns[side]] for side in sorted(columns)}


def _finite(value: Any) -> float | None:
    """Return a figure of report.json, where NaN and infinities are texts; None for these."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def lines(
    title: str, steps: Sequence[int], columns: Mapping[str, Column], *, logarithmic: bool = False
) -> Plot | None:
    """Return a plot of columns over train steps; None if it would have no line.

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
    low, high = _range(values)
    x, y = (
        _scaled(steps[0], steps[-1], LEFT, WIDTH - RIGHT),
        _scaled(low, high, HEIGHT - BOTTOM, TOP),
    )
    curves = [Curve(name, _points(steps, column, x, y)) for name, column in shown.items()]
    unscaled: Callable[[float], float] = (lambda v: 10**v) if logarithmic else float
    every = f", every {stride} steps" if stride > 1 else ""
    return Plot(
        title + every,
        "; ".join(_words(name, steps, column) for name, column in columns.items()),
        [Tick(x(step), str(step)) for step in dict.fromkeys((steps[0], steps[-1]))],
        [Tick(y(value), f"{unscaled(value):.3g}") for value in (low, high)],
        curves,
        [],
        ["step", *columns],
        [
            [str(step), *("" if v is None else f"{v:.6g}" for v in row)]
            for step, *row in zip(steps, *columns.values(), strict=True)
        ],
    )


def _range(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    # A flat curve lies in the middle.
    return (low, high) if low < high else (low - abs(low) / 2 - 1e-9, high + abs(high) / 2 + 1e-9)


def _scaled(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    length = high - low
    return lambda value: round(start + (end - start) * ((value - low) / length if length else 0), 1)


def _points(
    steps: Sequence[int],
    column: Column,
    x: Callable[[float], float],
    y: Callable[[float], float],
) -> list[str]:
    """Return the parts of a line; it is broken where there is no value."""
    parts: list[list[str]] = [[]]
    for step, value in zip(steps, column, strict=True):
        if value is None:
            parts.append([])
        else:
            parts[-1].append(f"{x(step)},{y(value)}")
    # A line of one point is drawn as a dot, which needs some length.
    return [" ".join(part if len(part) > 1 else [*part, *part]) for part in parts if part]


def _words(name: str, steps: Sequence[int], column: Column) -> str:
    known = [(step, v) for step, v in zip(steps, column, strict=True) if v is not None]
    if not known:
        return f"{name}: no figure"
    (first, start), (last, end) = known[0], known[-1]
    return f"{name}: {start:.3g} at step {first}, {end:.3g} at step {last}"


def _histogram(found: Mapping[str, Any]) -> Plot:
    """Plot how many elements are how far off; bars are as high as the logarithm of the count."""
    counts = list(enumerate(found["by_bits"]))
    named = [(_distance(bits), count) for bits, count in counts]
    named += [("NaN", found["nan"]), ("infinite", found["infinite"])]
    shown = named[:-2] + [pair for pair in named[-2:] if pair[1]]
    wide = (WIDTH - LEFT - RIGHT) / max(len(shown), 1)
    most = max((count for _, count in shown), default=0)
    y = _scaled(0, math.log10(1 + most), HEIGHT - BOTTOM, TOP)
    bars, ticks = [], []
    stride = 1 + len(shown) // 9
    for position, (name, count) in enumerate(shown):
        left, top = LEFT + position * wide, y(math.log10(1 + count))
        bars.append(Bar(round(left + 1, 1), top, round(wide - 2, 1), HEIGHT - BOTTOM - top))
        if position % stride == 0 or name in ("NaN", "infinite"):
            ticks.append(Tick(round(left + wide / 2, 1), name.split(" ")[0]))
    total = sum(count for _, count in named)
    off = total - (found["by_bits"][0] if found["by_bits"] else 0)
    return Plot(
        "Elements by distance in units in the last place",
        f"{off} of {total} elements are off; {found['nan']} NaN, {found['infinite']} infinite",
        ticks,
        [Tick(y(0), "0"), Tick(y(math.log10(1 + most)), str(most))],
        [],
        bars,
        ["distance", "elements"],
        [[name, str(count)] for name, count in named if count],
    )


def _distance(bits: int) -> str:
    if bits < 2:
        return str(bits)
    low = 2 ** (bits - 1)
    return f"{low} to {2 * low - 1}" if bits < 11 else f"2^{bits - 1} to 2^{bits}"
