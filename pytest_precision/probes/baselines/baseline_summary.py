"""Baseline summary: which files of expected results a session used, and which are unused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_precision.options import Settings
from pytest_precision.probes.baselines.baseline_files import (
    FOLDER,
    all_baselines,
    expect_replaceable,
    key_digest_of,
    maker_of_baseline,
    shown_from,
)
from pytest_precision.report.status import count

SHOWN_UNUSED = 10
"""Files that are listed; more are counted."""


class BaselineSummary:
    """The hooks that say which files of expected results were used, and which were not.

    Args:
        root: pytest's root, from which files are named.
        folder: of all baselines.
        settings: of the session.
    """

    @classmethod
    def of(cls, config: pytest.Config, settings: Settings) -> BaselineSummary:
        """Return the hooks for a session."""
        return cls(config.rootpath, settings.baseline_dir or config.rootpath / FOLDER, settings)

    def __init__(self, root: Path, folder: Path, settings: Settings) -> None:
        self._root = root
        self._folder = folder
        self._settings = settings
        self._states: dict[str, str] = {}
        self._test_files: set[str] = set()

    # It runs first, since an xdist controller collects nothing and stops this hook.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self) -> None:
        """End a session that is to write baselines where files of other tools have their names."""
        if self._settings.baseline == "update":
            expect_replaceable(self._folder)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Record which baseline files a finished test used, and their state, such as `written`."""
        if report.when != "teardown":
            return
        self._test_files.add(report.nodeid.partition("::")[0])
        for verdict in getattr(report, "precision", ()):
            if "baseline" in verdict:
                self._states[verdict["baseline"]["file"]] = verdict["baseline"]["state"]

    # The figures of the matrix come first.
    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(
        self, terminalreporter: pytest.TerminalReporter, config: pytest.Config
    ) -> None:
        """Write how many baselines were written or confirmed, and which are unused."""
        counted = Counter(self._states.values())
        words = ", ".join(f"{number} {state}" for state, number in sorted(counted.items()))
        if words:
            terminalreporter.write_line(f"precision: baselines: {words}")
        unused = [*self._unused_files()] if self._runs_all_tests(config) else []
        if unused:
            names = "; ".join(unused[:SHOWN_UNUSED])
            more = f" and {len(unused) - SHOWN_UNUSED} more" if len(unused) > SHOWN_UNUSED else ""
            head = f"precision: {count(len(unused), 'unused baseline')}"
            terminalreporter.write_line(f"{head}, which no check asks for: {names}{more}")

    def _unused_files(self) -> Iterator[str]:
        """Yield the baseline files of this environment that no check of the session uses."""
        keys = {key_digest_of(Path(file)) for file in self._states}
        for path in all_baselines(self._folder):
            name = shown_from(self._root, path)
            is_unused = key_digest_of(path) in keys and name not in self._states
            if is_unused and maker_of_baseline(path).partition("::")[0] in self._test_files:
                yield name

    def _runs_all_tests(self, config: pytest.Config) -> bool:
        """Return whether the session runs all tests, without a selection such as -k or -m."""
        settings = self._settings
        chosen = settings.select or settings.coverage != "full" or settings.shard != (1, 1)
        selections = [
            config.getoption(name, "") for name in ("keyword", "markexpr", "lf", "deselect")
        ]
        return not (chosen or any(selections) or any("::" in word for word in config.args))
