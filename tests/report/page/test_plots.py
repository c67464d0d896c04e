"""Plots: what is drawn is what the figures say, however long the run is."""

from __future__ import annotations

import pytest
from pages import entry

from pytest_precision.report.page.line_plot import MOST_POINTS, lines
from pytest_precision.report.page.plots import plots


def test_a_line_from_corner_to_corner():
    """The first step is at the left, the least value below."""
    plot = lines("Loss", [1, 2, 3], {"candidate": [1.0, 2.0, 3.0]})
    assert plot.curves["candidate"] == ["60.0,126.0 215.0,68.0 370.0,10.0"]
    assert [text for _, text in (*plot.x_ticks, *plot.y_ticks)] == ["1", "2", "3", "1", "2", "3"]
    assert plot.words == "candidate: 1 at step 1, 3 at step 3"


def test_a_line_breaks_where_there_is_no_value():
    """A single point between two gaps is a dot."""
    plot = lines("Loss", [1, 2, 3, 4, 5], {"a": [1.0, None, 2.0, None, 3.0]})
    assert [len(part.split()) for part in plot.curves["a"]] == [2, 2, 2]
    assert [row[1] for row in plot.rows] == ["1", "", "2", "", "3"]


def test_a_logarithmic_scale_has_no_zero():
    """Equal distances are equal factors, and what does not differ is no point."""
    plot = lines("Divergence", [1, 2, 3, 4], {"a": [0.0, 1e-6, 1e-4, 1e-2]}, logarithmic=True)
    heights = [point.partition(",")[2] for point in plot.curves["a"][0].split()]
    assert heights == ["126.0", "68.0", "10.0"]
    assert [text for _, text in plot.y_ticks] == ["1e-06", "1e-05", "0.0001", "0.001", "0.01"]


@pytest.mark.parametrize("column", [[None, None], [0.0, 0.0], []])
def test_nothing_to_see_is_no_plot(column):
    """A run that loses no update has no plot of lost updates."""
    assert lines("Lost updates", [1, 2][: len(column)], {"candidate": column}) is None


def test_long_runs_are_thinned_out():
    """The page does not grow with the number of steps, and says which are shown."""
    plot = lines("Loss", list(range(10_000)), {"a": [float(n) for n in range(10_000)]})
    assert MOST_POINTS / 2 < len(plot.rows) <= MOST_POINTS
    assert plot.title == "Loss, every 51 steps"


def test_the_histogram_counts_every_element_once():
    """A bar per distance, higher for more, and the same counts as a table."""
    plot = plots(entry("fail"))[-1]
    assert [bar.height > 0 for bar in plot.bars] == [True, False, True, True]
    assert plot.rows == [["0", "5"], ["2 to 3", "3"], ["NaN", "1"]]
    assert plot.words == "4 of 9 elements are off; 1 NaN, 0 infinite"
