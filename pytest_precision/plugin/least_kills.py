"""LeastKills: a session that notices too few planted defects fails."""

from __future__ import annotations

import pytest

from pytest_precision.report.kills import kills
from pytest_precision.report.session import runs_nothing


class LeastKills:
    """Hooks of the process that reports, with `--precision-min-kill`.

    Args:
        share: of the planted defects that must be noticed.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._killed = self._counted = 0
        self._failed = False

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the planted defects of a test."""
        if report.when == "call":
            killed, counted = kills(getattr(report, "precision", ()))
            self._killed += killed
            self._counted += counted

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Fail a session that would be green although it notices too little, or planted nothing."""
        green = session.exitstatus == pytest.ExitCode.OK
        if green and not runs_nothing(session.config):
            self._failed = self._killed < self._share * max(self._counted, 1)
        if self._failed:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Say why the session fails."""
        if self._failed:
            wanted = f"precision: expected at least {self._share:.0%} of planted defects to be"
            line = (
                f"{wanted} noticed but got {self._killed} of {self._counted}; add to the workload "
                "or tighten the criterion, as the summary says"
                if self._counted
                else f"{wanted} noticed but none was planted; add --precision-mutate, and a check "
                "that passes"
            )
            terminalreporter.write_line(line, red=True)
