"""Requirement: fail a session in which no cell ran, where CI must not pass by skipping."""

from __future__ import annotations

import pytest

from pytest_precision.options.planning_only import runs_nothing


class Requirement:
    """The hooks of `--precision-require`, which fail a session in which no cell ran.

    They run in the process that reports, which under xdist is the controller.

    Args:
        enabled: whether cells run at all.
    """

    def __init__(self, *, enabled: bool) -> None:
        self._advice = (
            "look at why they were skipped: pytest -rs" if enabled else "add --precision-matrix"
        )
        self._ran = 0
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the cells of matrix tests that ran, including expected failures."""
        skipped = report.skipped and not hasattr(report, "wasxfail")
        if report.when == "call" and hasattr(report, "precision_cell") and not skipped:
            self._ran += 1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that would pass although no cell of a matrix test ran."""
        green = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)
        if green and not self._ran and not runs_nothing(session.config):
            self._failed = True
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Write that the session fails since no matrix cell ran, if it does."""
        if self._failed:
            line = f"precision: expected at least one cell to run but got none; {self._advice}"
            terminalreporter.write_line(line, red=True)
