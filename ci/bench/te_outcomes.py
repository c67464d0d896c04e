"""pytest -p te_outcomes: write each outcome to a file at once, and run a part of the tests.

Each rank writes a file. It is there also when the run is ended before its last test.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

OUTCOMES = "PRECISION_TE_OUTCOMES"
"""Environment variable: the folder to write to."""

EVERY = "PRECISION_TE_EVERY"
"""Environment variable: one of so many tests is run."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep one of so many tests, and write how many are to run.

    It is a later one in each group of so many: one at the same place in each would have one value
    of each parameter with two, of which the first varies fastest.
    """
    every = int(os.environ.get(EVERY, "1"))
    items[:] = [item for n, item in enumerate(items) if n % every == n // every % every]
    _write({"collected": len(items)})


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write what became of a test: of its call, or of a set-up that did not get to one."""
    if report.when != "call" and report.outcome == "passed":
        return
    crash = getattr(report.longrepr, "reprcrash", None)
    why = crash.message if crash is not None else ""
    if report.skipped and isinstance(report.longrepr, tuple):
        why = report.longrepr[2]
    _write({"test": report.nodeid, "outcome": report.outcome, "why": why[:300]})


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Write why a file could not be collected."""
    if report.failed:
        _write({"test": report.nodeid, "outcome": "failed", "why": str(report.longrepr)[-300:]})


def _write(line: dict[str, object]) -> None:
    if OUTCOMES in os.environ:
        rank = os.environ.get("RANK", "0")
        with (Path(os.environ[OUTCOMES]) / f"rank{rank}").open("a") as file:
            file.write(json.dumps(line) + "\n")
