"""The result of one parametrized test, made of the results of its checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_precision.matrix.cell import AxisValue
from pytest_precision.parity.culprit import Culprit
from pytest_precision.report.report_attributes import test_of
from pytest_precision.report.status import PASSING, STATUSES, worst_status


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check, such as one `parity.check`, or of a test that made no check.

    Attributes:
        status: one of `STATUSES`.
        reason: one line; for an expected failure, the reason of the expectation if it has one.
        entry: entry in report.json: the verdict; `status`; `pytest`, pytest's word for the test
            (`passed`, `failed`, `error`, `skipped`, `xfailed`, `xpassed`); `xfail`, the reason of
            the expectation if there is one; and what all checks of the cell have in common: `axes`,
            `number`, `line`, `worker`, `unread`, `reruns` and `test_seconds`.
    """

    status: str
    reason: str
    entry: Mapping[str, Any]

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> CheckResult:
        """Make a check's result from its entry in report.json."""
        status = entry.get("status", entry["outcome"])
        reason = entry.get("xfail", entry["reason"]) if status == "xfail" else entry["reason"]
        return cls(status, reason, entry)

    @property
    def culprit(self) -> Culprit | None:
        """The operation that made the first wrong value; None if not known."""
        entry = self.entry.get("culprit")
        return None if entry is None else Culprit.of(entry)


@dataclass(frozen=True, slots=True)
class CellResult:
    """The result of one parametrized test: the results of its checks, duration and axes.

    Attributes:
        nodeid: pytest's id of the test.
        test: the id without parameters, which names the matrix that the cell belongs to.
        axes: axis name to value; empty if the worker crashed before it sent them.
        number: position in its matrix.
        line: line of the test in its file, from 0.
        seconds: duration of all phases of the test, including fixtures.
        unread: axes of the user's own that nothing has read in this cell.
        reruns: how often the test failed and was run again, before the run that counts.
        checks: at least one, in the order in which they were made.
    """

    nodeid: str
    test: str
    axes: Mapping[str, AxisValue]
    number: int
    line: int
    seconds: float
    checks: tuple[CheckResult, ...]
    unread: tuple[str, ...] = ()
    reruns: int = 0

    @classmethod
    def of(cls, entries: Sequence[Mapping[str, Any]]) -> CellResult:
        """Make a test's result from the entries of its checks in report.json, at least one."""
        first = entries[0]
        nodeid = first["nodeid"]
        return cls(
            nodeid,
            test_of(nodeid),
            first["axes"],
            first.get("number", 0),
            first.get("line", 0),
            first.get("test_seconds", sum(entry["seconds"] for entry in entries)),
            tuple(map(CheckResult.of, entries)),
            tuple(first.get("unread", ())),
            first.get("reruns", 0),
        )

    @property
    def position(self) -> tuple[str, int, int]:
        """A sort key by file, line and position in the matrix, the same with or without xdist."""
        return self.test.partition("::")[0], self.line, self.number

    @property
    def status(self) -> str:
        """The worst status of the test's checks, such as `fail`."""
        return worst_status(check.status for check in self.checks)

    @property
    def gates(self) -> tuple[str, ...]:
        """The names of the gates (the conditions of a check) that failed the test, each once."""
        return tuple(dict.fromkeys(c.entry["gate"] for c in self.checks if "gate" in c.entry))

    @property
    def passing(self) -> bool:
        """Whether all checks passed, perhaps with tolerances or with tensors left uncompared."""
        return self.status in PASSING

    @property
    def caught(self) -> bool:
        """Whether the test itself caught the expected failure, so that pytest counts a pass."""
        return self.status == "xfail" and self.checks[-1].entry["pytest"] == "passed"

    @property
    def failing(self) -> bool:
        """Whether the result fails the test in pytest."""
        return STATUSES[self.status].failing
