"""Likewise: of cells that failed for one reason, pytest's own section shows the first one whole."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from pytest_precision.report.collect import CellResult
from pytest_precision.report.reasons import fold
from pytest_precision.report.status import FAILING, STATUSES


def shorten(reporter: pytest.TerminalReporter, cells: Iterable[CellResult]) -> None:
    """Replace all but the first failure of each reason by a line that names the first one.

    JUnit files and report.json hold every failure whole: they were written, or given it, before.

    Args:
        reporter: pytest's terminal reporter; with `-v` it shows everything.
        cells: all results.
    """
    if reporter.verbosity > 0:
        return
    firsts = _firsts(sorted(cells, key=lambda cell: cell.position))
    for report in reporter.getreports("failed"):
        first = firsts.get(report.nodeid)
        if first is not None and report.when == "call":
            report.longrepr = f"like {first.partition('::')[2]} (-v: whole)"


def _firsts(cells: Iterable[CellResult]) -> dict[str, str]:
    """Return, for each cell that failed like an earlier one and in no other way, that one's id."""
    alone = [cell for cell in cells if sum(STATUSES[c.status].failing for c in cell.checks) == 1]
    return {
        cell.nodeid: reason.cells[0].nodeid
        for reason in fold(alone, FAILING)
        for cell in reason.cells[1:]
    }
