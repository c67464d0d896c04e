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

RUNS_NOTHING = ("collectonly", "setuponly", "setupplan")
"""pytest's options under which no test is called."""


class SessionReport:
    """The report of one session.

    Args:
        config: pytest's; its terminal reporter, if there is one, gets the progress lines.
        folder: of `--precision-report`, None without.
        environment: of report.json; see `environment.environment`.

    Attributes:
        results: the cells so far.
    """

    @classmethod
    def of(cls, config: pytest.Config, settings: Settings) -> SessionReport:
        """The report that the settings ask for."""
        flags = {name: value for name, value in asdict(settings).items() if name != "report"}
        return cls(config, settings.report, environment(device=settings.device, flags=flags))

    def __init__(
        self, config: pytest.Config, folder: Path | None, environment: Mapping[str, Any]
    ) -> None:
        self.results = Results()
        self._config = config
        self._folder = folder
        self._environment = environment
        self._file: JsonFile | None = None
        self._progress: Progress | None = None
        self._ended = False

    def start(self) -> None:
        """For `pytest_collection`: take the place of the last session's report.

        A session that calls no test leaves that report alone.

        Raises:
            pytest.UsageError: if the folder cannot be written to.
        """
        idle = any(self._config.getoption(name, False) for name in RUNS_NOTHING)
        if self._folder is not None and not idle:
            self._file = JsonFile(self._folder, self._environment)

    def plan(self, cells: int | None) -> None:
        """For `pytest_collection_finish`: so many cells are to run; nothing where it is unknown."""
        if self._file is not None and cells not in (None, self._file.planned):
            self._file.plan(cells)

    def add(self, report: pytest.TestReport) -> None:
        """For `pytest_runtest_logreport`: every report of every phase, in any order of tests."""
        ended = self.results.add(report)
        if self.results.total:  # a controller of xdist collects nothing: its workers' reports tell
            self.plan(self.results.total)
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

    def end(self) -> None:
        """For `pytest_runtestloop`, once it has returned: nothing broke it off."""
        self._ended = True

    def finish(self) -> None:
        """For `pytest_sessionfinish`, which also follows an interrupt: the last write."""
        if self._file is not None:
            planned = self._file.planned
            all_ran = planned is not None and len(self.results.cells) >= planned
            self._file.close(finished=self._ended and all_ran)

    def summary(self, reporter: pytest.TerminalReporter) -> None:
        """For `pytest_terminal_summary`."""
        terminal.summary(reporter, self.results, "" if self._file is None else self._file.problem)
