"""Make the plots of one check: loss, gradient norm, lost updates, error and histogram.

A plot is for the eye; the same figures stand below it as a table, for everyone else.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_precision.report.page.line_plot import (
    BOTTOM_MARGIN,
    LEFT_MARGIN,
    PLOT_HEIGHT,
    PLOT_WIDTH,
    RIGHT_MARGIN,
    TOP_MARGIN,
    Bar,
    Column,
    Plot,
    lines,
    onto_axis,
)


def plots(entry: Mapping[str, Any]) -> list[Plot]:
    """Return the plots of one check from its entry in report.json."""
    check_plots = [_divergence(entry)]
    curves = entry.get("curves", {})
    steps = curves.get("step", [])
    for name, title in (("loss", "Loss"), ("grad_norm", "Gradient norm")):
        if name in curves:
            # Two curves that lie on each other show nothing of what lies between them.
            apart = {"difference": _difference(curves[name])}
            check_plots.append(lines(title, steps, _sides(curves[name])))
            check_plots.append(
                lines(
                    f"{title}, candidate - reference, without sign", steps, apart, logarithmic=True
                )
            )
    if "lost_updates" in curves:
        check_plots.append(lines("Lost updates, share", steps, _sides(curves["lost_updates"])))
    if "histogram" in entry:
        check_plots.append(_histogram(entry["histogram"]))
    return [plot for plot in check_plots if plot is not None]


def _divergence(entry: Mapping[str, Any]) -> Plot | None:
    """Plot how far candidate and reference differ at each step, relatively, on a log scale."""
    spread = entry.get("spread", {"step": [], "operation": [], "kinds": {}})
    at = [n for n, operation in enumerate(spread["operation"]) if operation == "train"]
    steps = [spread["step"][n] for n in at]
    curves = {}
    for kind in ("loss", "reduced_grad", "master", "param"):
        column = spread["kinds"].get(kind, {}).get("rel_l2")
        if column:
            curves[kind] = [_finite(column[n]) for n in at]
    return lines("Divergence, relative L2 error", steps, curves, logarithmic=True)


def _sides(columns: Mapping[str, Sequence[Any]]) -> dict[str, Column]:
    return {side: [_finite(value) for value in columns[side]] for side in sorted(columns)}


def _difference(columns: Mapping[str, Sequence[Any]]) -> Column:
    """Return |candidate - reference| at each step; None where one of the two has no value."""
    sides = _sides(columns)
    pairs = zip(sides["candidate"], sides["reference"], strict=True)
    return [None if a is None or b is None else abs(a - b) for a, b in pairs]


def _finite(value: Any) -> float | None:
    """Return a number of report.json as a float; None for the texts of NaN and infinities."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value)


def _histogram(histogram: Mapping[str, Any]) -> Plot:
    """Plot how many elements differ by how many ulp, on a log scale."""
    counts = list(enumerate(histogram["by_bits"]))
    named = [(_distance(bits), count) for bits, count in counts]
    named += [("NaN", histogram["nan"]), ("infinite", histogram["infinite"])]
    shown = named[:-2] + [pair for pair in named[-2:] if pair[1]]
    wide = (PLOT_WIDTH - LEFT_MARGIN - RIGHT_MARGIN) / max(len(shown), 1)
    most = max((count for _, count in shown), default=0)
    y = onto_axis(0, math.log10(1 + most), PLOT_HEIGHT - BOTTOM_MARGIN, TOP_MARGIN)
    bars = []
    ticks = []
    stride = 1 + len(shown) // 9
    for position, (name, count) in enumerate(shown):
        left, top = LEFT_MARGIN + position * wide, y(math.log10(1 + count))
        bars.append(
            Bar(round(left + 1, 1), top, round(wide - 2, 1), PLOT_HEIGHT - BOTTOM_MARGIN - top)
        )
        if position % stride == 0 or name in ("NaN", "infinite"):
            ticks.append((round(left + wide / 2, 1), name.split(" ")[0]))
    total = sum(count for _, count in named)
    off = total - (histogram["by_bits"][0] if histogram["by_bits"] else 0)
    return Plot(
        "Elements by distance in units in the last place",
        f"{off} of {total} elements are off; {histogram['nan']} NaN, "
        f"{histogram['infinite']} infinite",
        ticks,
        [(y(0), "0"), (y(math.log10(1 + most)), str(most))],
        {},
        bars,
        ["distance", "elements"],
        [[name, str(count)] for name, count in named if count],
    )


def _distance(bits: int) -> str:
    if bits < 2:
        return str(bits)
    low = 2 ** (bits - 1)
    return f"{low} to {2 * low - 1}" if bits < 11 else f"2^{bits - 1} to 2^{bits}"
