"""Make one result per test of the matrix from pytest's reports of its phases.

    verdicts (none, one or several per test) + pytest's outcome of each phase -> checks -> cell

A failing verdict is an expected failure where pytest says so (`xfail`) or where the test body
caught it. Whatever else ends a test (a skip, a broken fixture, an assertion of the test itself, the
crash of a worker) counts as one more check of the cell, without a layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import dropwhile
from typing import Any, NamedTuple

import pytest

from pytest_precision.parity.verdict import again
from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.report_attributes import test_of
from pytest_precision.report.status import STATUSES

PHASES = ("setup", "call", "teardown")
"""pytest's phases of a test; the report of a crashed worker belongs to none of them."""

RunKey = tuple[str, str]
"""Node id and xdist worker: `--dist=each` runs the same test on every worker."""


ERROR_LINES = 200
"""Lines of an error that a report has; the last ones, where the output of ranks is."""


class _Ended(NamedTuple):
    """How a phase of a test ended: pytest's word for it, and its message."""

    word: str
    reason: str = ""
    details: tuple[str, ...] = ()


@dataclass(slots=True)
class _TestRun:
    """What pytest has reported so far of one run of one test."""

    verdicts: list[dict[str, Any]] = field(default_factory=list)
    phases: dict[str, _Ended] = field(default_factory=dict)
    raised: set[int] = field(default_factory=set)
    seconds: float = 0.0
    discarded: bool = False


class Results:
    """The results of a session's matrix tests, in the order in which the tests first ended.

    Attributes:
        cells: one result per cell; under `--dist=each` one per cell and worker.
        total: number of matrix cells in the session; 0 until a report has contained it.
    """

    def __init__(self) -> None:
        self.cells: dict[RunKey, CellResult] = {}
        self.total = 0
        self._known: dict[str, Mapping[str, Any]] = {}
        self._tests: set[str] = set()
        self._runs: dict[RunKey, _TestRun] = {}
        self._reruns: Counter[RunKey] = Counter()

    def add(self, report: pytest.TestReport) -> tuple[RunKey, CellResult] | None:
        """Add pytest's report of one test phase; return the test's result if it has now ended."""
        cell = self._cell(report)
        if cell is None:
            return None
        key = (report.nodeid, _worker(report))
        if report.when == "setup":
            # A test that is run again starts over: its last run counts.
            self._runs[key] = _TestRun()
        run = self._runs.setdefault(key, _TestRun())
        run.seconds += report.duration
        # Only the last report of a phase counts: reports of subtests come before the test's own.
        ended = run.phases[report.when] = _ended(report)
        run.verdicts = getattr(report, "precision", []) or run.verdicts
        run.raised.update(getattr(report, "precision_raised", ()))
        run.discarded = run.discarded or ended.word == "rerun"
        if report.when in PHASES[:-1]:
            return None
        del self._runs[key]
        self._reruns[key] += run.discarded
        common = _common(report, cell, run)
        if self._reruns[key]:
            common["reruns"] = self._reruns[key]
        entries = _entries(report.nodeid, run, common)
        if run.discarded or not entries:  # `--setup-only` makes no call, so there is no result
            return None
        result = self.cells[key] = CellResult.of(entries)
        return key, result

    def _cell(self, report: pytest.TestReport) -> Mapping[str, Any] | None:
        """Return test and axes of the matrix cell that a report is about; None if it has none."""
        cell: Mapping[str, Any] | None = getattr(report, "precision_cell", None)
        test = test_of(report.nodeid)
        if cell is None and getattr(report, "precision", None):
            cell = {"test": test, "axes": report.precision[0]["axes"]}  # a check without a matrix
        elif cell is None and report.when not in PHASES and test in self._tests:
            # The worker crashed before the first report of this cell: xdist knows only the node id.
            cell = self._known.get(report.nodeid, {"test": test, "axes": {}})
        if cell is not None:
            self._known[report.nodeid] = cell
            self._tests.add(cell["test"])
            self.total = cell.get("total", 0) or self.total
        return self._known.get(report.nodeid)


def _worker(report: pytest.TestReport) -> str:
    node = getattr(report, "node", None)
    return "" if node is None else str(node.gateway.id)


def _ended(report: pytest.TestReport) -> _Ended:
    if hasattr(report, "wasxfail"):
        reason = report.wasxfail.removeprefix("reason: ")
        return _Ended("xpassed" if report.passed else "xfailed", reason)
    reason, *details = _message(report) or [""]
    if report.failed:
        word = "failed" if report.when == "call" else "error"
        return _Ended(word, reason.strip(), tuple(details[-ERROR_LINES:]))
    return _Ended(str(report.outcome), reason.strip())


def _message(report: pytest.TestReport) -> list[str]:
    """Return the lines of the error or the reason that ended a phase, from the first with text."""
    longrepr = report.longrepr
    if longrepr is None:
        return []
    if isinstance(longrepr, tuple):
        text = longrepr[2].removeprefix("Skipped: ")
    else:
        crash = getattr(longrepr, "reprcrash", None)
        text = str(longrepr) if crash is None else crash.message
    return [*dropwhile(lambda line: not line.strip(), text.splitlines())]


def _common(report: pytest.TestReport, cell: Mapping[str, Any], run: _TestRun) -> dict[str, Any]:
    """Return the fields that all entries of a test in report.json share."""
    worker = _worker(report)
    return {
        "axes": dict(cell["axes"]),
        "number": cell.get("number", 0),
        "line": report.location[1] or 0,
        "test_seconds": run.seconds,
        **({"worker": worker} if worker else {}),
        **({"unread": list(cell["unread"])} if cell.get("unread") else {}),
    }


def _entries(nodeid: str, run: _TestRun, common: dict[str, Any]) -> list[dict[str, Any]]:
    phase, reason, _ = run.phases.get("call", _Ended(""))
    expected = {"xfail": reason} if reason and phase in ("xfailed", "xpassed") else {}
    entries = []
    for number, verdict in enumerate(run.verdicts):
        status = _status(verdict, phase, raised=number in run.raised)
        entries.append(verdict | {"status": status, "pytest": phase} | expected | common)
    for outcome, status, ended in _endings(run, [entry["status"] for entry in entries]):
        word = ended.word
        status_fields = {"status": status, "pytest": word} | (expected if word == phase else {})
        entries.append(_ending(nodeid, outcome, ended, run.seconds) | status_fields | common)
    return entries


def _status(verdict: Mapping[str, Any], phase: str, *, raised: bool) -> str:
    """Return the status of a check, given pytest's word for the test, such as `xfailed`.

    Args:
        verdict: as `Verdict.as_dict()`.
        phase: pytest's word for the call of the test.
        raised: whether its error has ended a phase of the test. If not, the body has caught it.
    """
    outcome = str(verdict["outcome"])
    if outcome == "pass" or verdict["status"] == "partial":  # which a reported drift is
        return "xpass" if phase == "xpassed" else str(verdict["status"])
    if outcome == "skip" or phase == "skipped":
        return "skip"
    return outcome if raised and phase != "xfailed" else "xfail"


def _ending(nodeid: str, outcome: str, ended: _Ended, seconds: float) -> dict[str, Any]:
    """Return an entry of report.json for a test that ended without a check."""
    sides = dict.fromkeys(("candidate", "reference", "workload", "criterion"), "")
    repeat = {} if outcome in ("pass", "skip") else {"repeat": again(nodeid)}
    counted = {"observations": 0, "bytes": 0, "seconds": seconds}
    reason = "" if outcome == "pass" else ended.reason
    outcome_fields = {"outcome": outcome, "reason": reason, "details": [*ended.details]}
    return {"nodeid": nodeid} | sides | outcome_fields | counted | repeat


def _endings(run: _TestRun, statuses: list[str]) -> list[tuple[str, str, _Ended]]:
    """Return a test's outcomes that none of its checks reports, such as an error in teardown."""
    endings = []
    for when, ended in run.phases.items():
        word = ended.word
        if word == "error":
            endings.append(("error", "error", ended))
        elif word == "failed" and not any(STATUSES[status].failing for status in statuses):
            endings.append(("fail", "fail", ended))
        elif word == "skipped" and when != "teardown" and "skip" not in statuses:
            endings.append(("skip", "skip", ended))
        elif word == "xfailed" and "xfail" not in statuses:
            endings.append(("fail", "xfail", ended))
        elif word in ("passed", "xpassed") and when == "call" and not statuses:
            endings.append(("pass", "xpass" if word == "xpassed" else "pass", ended))
    return endings
