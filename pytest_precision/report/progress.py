"""Progress: an occasional line during a long run."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from pytest_precision.report.collect import Results
from pytest_precision.report.status import count, duration

INTERVAL = 30.0
"""Seconds between two lines, and before the first one."""


class Progress:
    """Decides when a progress line is due, and words it.

    Args:
        clock: returns the time in seconds; the remaining time is estimated from the pace since
            construction.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def line(self, results: Results) -> str:
        """Return the line that is due now; empty if none is."""
        now = self._clock()
        done, total = len(results.cells), results.total
        if now - self._last < INTERVAL or done == total:
            return ""
        self._last = now
        failed = sum(cell.failing for cell in results.cells.values())
        if done > total:
            return f"precision: {count(done, 'cell')}, {failed} failed"
        left = (now - self._start) / done * (total - done)
        return (
            f"precision: {done} of {count(total, 'cell')}, {failed} failed, "
            f"about {duration(left)} left"
        )


def write_line(terminal: pytest.TerminalReporter, line: str) -> None:
    """Write a separate line between the dots, however pytest prints them."""
    # The reporter's own `ensure_newline` does not count the dots that it writes under xdist.
    writer = terminal.config.get_terminal_writer()
    if writer.width_of_current_line:
        writer.line()
    writer.line(line)
