"""Progress: when a line is due and what it says."""

from __future__ import annotations

from made_up import cell

from pytest_precision.report.collect import Results
from pytest_precision.report.session import INTERVAL, Progress


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def session(done: int, failed: int, total: int) -> Results:
    results = Results()
    results.total = total
    for number in range(done):
        results.cells[str(number), ""] = cell("fail" if number < failed else "pass")
    return results


def test_line_after_the_interval():
    """Nothing before 30 s; then cells, failures and the time left at the pace so far."""
    clock = Clock()
    progress = Progress(clock)
    clock.now = INTERVAL - 0.1
    assert progress.line(session(119, 3, 480)) == ""
    clock.now = 80.0
    text = "precision: 120 of 480 cells, 3 failed, about 4 min left"
    assert progress.line(session(120, 3, 480)) == text


def test_lines_keep_their_distance():
    """A line is due 30 s after the one before."""
    clock = Clock()
    progress = Progress(clock)
    clock.now = 31.0
    assert progress.line(session(1, 0, 9)) != ""
    clock.now = 60.9
    assert progress.line(session(2, 0, 9)) == ""
    clock.now = 61.0
    assert progress.line(session(3, 0, 9)) != ""


def test_last_cell_has_no_line():
    """The summary follows at once."""
    clock = Clock()
    progress = Progress(clock)
    clock.now = 100.0
    assert progress.line(session(9, 0, 9)) == ""


def test_unknown_total():
    """Without a total nothing is said of the time left."""
    clock = Clock()
    progress = Progress(clock)
    clock.now = 100.0
    assert progress.line(session(9, 1, 0)) == "precision: 9 cells, 1 failed"
