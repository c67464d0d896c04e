"""Collect and write the report of one pytest session, for pytest's hooks on the controller."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_precision.options import Settings
from pytest_precision.options.planning_only import runs_nothing
from pytest_precision.registered import ReporterSpec, expect_specs, resolved
from pytest_precision.report import terminal
from pytest_precision.report.collect import Results
from pytest_precision.report.json_file import JsonFile
from pytest_precision.report.provenance import earlier_of, environment, session_run
from pytest_precision.report.report_files import expect_reports_free, page_in, unusable
from pytest_precision.report.shortened import shorten
from pytest_precision.report.status import count, duration

REPORT_OPTION = "--precision-report"


class SessionReport:
    """The report of one pytest session, updated after each test.

    Args:
        config: pytest's configuration; its terminal reporter, if any, writes the progress lines.
        folder: folder of `--precision-report`; None without the option.
        environment: entry of report.json; see `provenance.environment`.
        ask: returns the reporters that plugins have registered.

    Attributes:
        results: results of the cells so far.
    """

    @classmethod
    def of(cls, config: pytest.Config, settings: Settings) -> SessionReport:
        """Return a session's report, with the environment and the flags in its `settings`."""
        flags = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in asdict(settings).items()
            if name != "report"
        }
        session_environment = environment(device=settings.device, flags=flags)
        if settings.report is not None and not runs_nothing(config):
            session_environment["runs"] = [session_run(config.rootpath, host=settings.report_host)]
        # pluggy calls the last plugin first.
        return cls(
            config,
            settings.report,
            session_environment,
            lambda: config.hook.pytest_precision_reporters(config=config)[::-1],
        )

    def __init__(
        self,
        config: pytest.Config,
        folder: Path | None,
        environment: Mapping[str, Any],
        ask: Callable[[], Sequence[object]] = tuple,
    ) -> None:
        self._ask = ask
        self.results = Results()
        self._config = config
        self._folder = folder
        self._environment = environment
        self._file: JsonFile | None = None
        self._progress: Progress | None = None
        self._reporters: Sequence[ReporterSpec] = ()
        self._lines: list[str] = []
        self._problems: list[str] = []
        self._ended = False
        self._started = time.monotonic()

    def start(self) -> None:
        """Replace an earlier session's report.json by an empty one, and delete its page.

        A session that calls no test leaves that file alone.

        Raises:
            pytest.UsageError: the folder cannot be written to, or has a file of another tool; or
                what a plugin has registered is no reporter.
        """
        if not runs_nothing(self._config):
            self._reporters = expect_specs(self._ask(), ReporterSpec)
        if self._folder is not None and not runs_nothing(self._config):
            expect_reports_free(self._folder, REPORT_OPTION)
            self._file = JsonFile(self._folder, self._environment, option=REPORT_OPTION)
            try:
                # The page of an earlier session would pass for that of one that is killed.
                page_in(self._folder).remove()
            except OSError as error:
                raise unusable(self._folder, REPORT_OPTION, error) from error

    def plan(self, cells: int | None) -> None:
        """Write into report.json how many tests will run; do nothing while that is unknown."""
        if self._file is not None and cells not in (None, self._file.planned):
            self._file.plan(cells)

    def add(self, report: pytest.TestReport) -> None:
        """Add pytest's report of one test phase; write the test's result once it has ended."""
        ended = self.results.add(report)
        if self.results.total:  # an xdist controller collects nothing; reports contain the total
            self.plan(self.results.total)
        if self._progress is None and (ended or self.results.total):
            # The pace starts here, since other tests may run before the first cell.
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
            write_line(reporter, line)

    def end(self) -> None:
        """Record that the session ran all of its tests without an interruption."""
        self._ended = True

    def finish(self) -> None:
        """Write report.json for the last time, and call the reporters, also after an interrupt.

        What cannot be written becomes a line of the summary: no test depends on it.
        """
        if self._file is not None:
            planned = self._file.planned
            all_ran = planned is not None and len(self.results.cells) >= planned
            self._file.close(finished=self._ended and all_ran)
        self._call_reporters()
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            shorten(reporter, self.results.cells.values())

    def _call_reporters(self) -> None:
        file = self._file
        cells = [check.entry for cell in self.results.cells.values() for check in cell.checks]
        folder = None if file is None or file.problem else file.path.parent
        for reporter in self._reporters:
            try:
                self._lines += resolved(reporter.function, reporter)(cells, folder) or ()
            except Exception as error:  # whatever it is, the tests have ended as they have
                self._problems.append(str(error))

    def summary(self, reporter: pytest.TerminalReporter) -> None:
        """Write the report's section of pytest's terminal summary."""
        problems = [*self._problems]
        if self._file is not None and self._file.problem:
            problems.append(self._file.problem)
        seconds = time.monotonic() - self._started
        flags = self._environment.get("flags", {})
        lines = [*filter(None, [earlier_of(flags)]), *self._lines]
        bare = flags.get("probes") == "none"
        terminal.write_summary(reporter, self.results, seconds, problems, lines, bare=bare)


INTERVAL = 30.0
"""Seconds between two lines, and before the first one."""


class Progress:
    """Decides when a line on the session's progress is due, and makes it.

    Args:
        clock: returns the time in seconds; the remaining time is estimated from the pace since
            construction.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._start = self._last = clock()

    def line(self, results: Results) -> str:
        """Return a progress line if the last one is at least 30 s old; else an empty text."""
        clock_time = self._clock()
        done, total = len(results.cells), results.total
        if clock_time - self._last < INTERVAL or done == total:
            return ""
        self._last = clock_time
        failed = sum(cell.failing for cell in results.cells.values())
        if done > total:
            return f"precision: {count(done, 'cell')}, {failed} failed"
        left = (clock_time - self._start) / done * (total - done)
        return (
            f"precision: {done} of {count(total, 'cell')}, {failed} failed, "
            f"about {duration(left)} left"
        )


def write_line(terminal: pytest.TerminalReporter, line: str) -> None:
    """Write a separate line into pytest's terminal output, between its progress dots."""
    # The reporter's own `ensure_newline` does not count the dots that it writes under xdist.
    writer = terminal.config.get_terminal_writer()
    if writer.width_of_current_line:
        writer.line()
    writer.line(line)
