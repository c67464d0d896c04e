"""What drawn cells cost: `python ci/bench/drawn.py [NUMBER] [ARGUMENTS OF PYTEST]`.

Cells of fixtures/downstream on two ranks, as they are written and with NUMBER (10 unless given)
sequences drawn for each test. The figures are sequences a minute, which belong to a machine and its
load, and the time of a drawn cell over that of a written one in the same run.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOWNSTREAM = Path(__file__).resolve().parents[2] / "fixtures" / "downstream"

DRAWN = "[drawn"
"""What the names of drawn items have."""


class Stopwatch:
    """Seconds of the tests that passed.

    Args:
        number: of sequences per drawn item.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.drawn: list[float] = []
        self.written: list[float] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep what a call took; one that failed was shrunk, too."""
        if report.when == "call" and report.passed:
            (self.drawn if DRAWN in report.nodeid else self.written).append(report.duration)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write the rate, and what a drawn cell takes of the time of a written one."""
        if not self.drawn or not self.written:
            return
        each = sum(self.drawn) / len(self.drawn) / self.number
        mean_written = sum(self.written) / len(self.written)
        terminalreporter.write_line(
            f"{60 / each:.0f} sequences a minute in {len(self.drawn)} tests; a drawn cell takes "
            f"{each / mean_written:.2f} times as long as a written one"
        )


if __name__ == "__main__":
    number, *rest = (
        sys.argv[1:] if sys.argv[1:2] and sys.argv[1].isdecimal() else [10, *sys.argv[1:]]
    )
    options = [
        "--precision-matrix",
        "--precision-select=world_size=2",
        f"--precision-fuzz={number}",
    ]
    arguments = [f"--rootdir={DOWNSTREAM}", "-q", *options, *(rest or [str(DOWNSTREAM)])]
    sys.exit(pytest.main(arguments, plugins=[Stopwatch(int(number))]))
