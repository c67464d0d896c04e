"""Session: what pytest's hooks delegate to, on the controller only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.options import Settings
from pytest_precision.report import progress, terminal
from pytest_precision.report.collect import Results
from pytest_precision.report.environment import environment
from pytest_precision.report.json_file import JsonFile
from pytest_precision.report.progress import Progress

BROKEN_OFF = (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR)
"""How a session ends that has not run all that it was to run, and was not told to stop."""


class SessionReport:
    """The report of one session.

    Args:
        config: pytest's; its terminal reporter, if there is one, gets the progress lines.
        folder: of `--precision-report`, None without.
        environment: of report.json; see `environment.environment`.

    Attributes:
        results: the cells so far.

    Raises:
        pytest.UsageError: if the folder cannot be written to.
    """

    @classmethod
    def of(cls, config: pytest.Config, settings: Settings) -> SessionReport:
        """The report that the settings ask for."""
        flags = {name: value for name, value in asdict(settings).items() if name != "report"}
        # Collecting runs nothing, so it leaves the report of the last run alone.
        folder = None if config.getoption("collectonly") else settings.report
        return cls(config, folder, environment(device=settings.device, flags=flags))

    def __init__(
        self, config: pytest.Config, folder: Path | None, environment: Mapping[str, Any]
    ) -> None:
        self.results = Results()
        self._config = config
        self._file = None if folder is None else JsonFile(folder, environment)
        self._progress: Progress | None = None

    def add(self, report: pytest.TestReport) -> None:
        """For `pytest_runtest_logreport`: every report of every phase, in any order of tests."""
        ended = self.results.add(report)
        if self._progress is None and (ended or self.results.total):
            # Not with the session: tests that are no cells may have run before the first one.
            self._progress = Progress()
        if ended is None:
            return
        key, cell = ended
        if self._file is not None:
            self._file.put(key, [check.entry for check in cell.checks])
        assert self._progress is not None
        line = self._progress.line(self.results)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if line and reporter is not None and reporter.verbosity >= 0:
            progress.write(reporter, line)

    def finish(self, exitstatus: int) -> None:
        """For `pytest_sessionfinish`, which also follows an interrupt: the last write."""
        if self._file is not None:
            self._file.close(finished=exitstatus not in BROKEN_OFF)

    def summary(self, reporter: pytest.TerminalReporter) -> None:
        """For `pytest_terminal_summary`."""
        terminal.summary(reporter, self.results, "" if self._file is None else self._file.problem)
