"""Group tests that ended for the same reason, so that a report states each reason once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytest_precision._visible import visible
from pytest_precision.parity.culprit import Culprit
from pytest_precision.parity.verdict import cell_of
from pytest_precision.report.cell_result import CellResult, CheckResult
from pytest_precision.report.status import FAILING, count


@dataclass(slots=True)
class Reason:
    """A reason for which tests failed or were skipped, with the list of these tests.

    Attributes:
        status: status of the checks.
        text: reason of the first check, without the name of its cell.
        kind: what all checks have in common.
        cells: each cell once, in the given order.
        checks: the first such check of each cell.
        texts: those of all checks; several concern the same kind of the same tensor and differ in
            numbers.
    """

    status: str
    text: str
    kind: tuple[object, ...]
    cells: list[CellResult] = field(default_factory=list)
    checks: list[CheckResult] = field(default_factory=list)
    texts: set[str] = field(default_factory=set)

    @property
    def check(self) -> CheckResult:
        """The check of the first test that ended for this reason."""
        return self.checks[0]

    @property
    def times(self) -> str:
        """The number of tests as a prefix, such as `12x `; empty for one test."""
        return f"{len(self.cells)}x " if len(self.cells) > 1 else ""

    @property
    def identical(self) -> bool:
        """Whether all checks that ended for this reason state it in exactly the same words."""
        return len(self.texts) == 1

    @property
    def culprit(self) -> Culprit | None:
        """The operation at fault in the first check; None where the reason is that of an xfail."""
        return self.check.culprit if _is_own(self.check) else None

    @property
    def place(self) -> tuple[str, int]:
        """File and line (from 1) of the cause if in the project, else of the test or script."""
        culprit = self.culprit
        if culprit is not None and culprit.file and culprit.line and not culprit.outside:
            return culprit.file, culprit.line
        first = self.cells[0]
        recorded = self.check.entry.get("recorded")
        if recorded and "::" not in first.test:  # a comparison on the command line is in no file
            return recorded["candidate"]["script"], 1
        return first.test.partition("::")[0], first.line + 1

    @property
    def lines(self) -> list[str]:
        """The reason, the operation at fault, and the first test with the number of others."""
        culprit = [] if self.culprit is None else [visible(self.culprit.text)]
        return [self.text or "no reason given", *culprit, self.where]

    @property
    def where(self) -> str:
        """The first test's node id, and how many more tests ended for this reason."""
        more = len(self.cells) - 1
        others = f" and {more} more" if more else ""
        return self.cells[0].nodeid + others + ("" if self.identical else " alike")


def fold(cells: Iterable[CellResult], statuses: Iterable[str]) -> list[Reason]:
    """Group the checks that have one of some statuses by reason, the most frequent first."""
    chosen_statuses = set(statuses)
    reasons: dict[tuple[object, ...], Reason] = {}
    for cell in cells:
        for check in cell.checks:
            if check.status in chosen_statuses:
                text = text_of(cell, check)
                kind = _kind(check, text)
                reason = reasons.setdefault(kind, Reason(check.status, text, kind))
                reason.texts.add(text)
                if reason.cells[-1:] != [cell]:
                    reason.cells.append(cell)
                    reason.checks.append(check)
    return sorted(reasons.values(), key=lambda reason: -len(reason.cells))


def kinds_of(cell: CellResult) -> set[tuple[object, ...]]:
    """Return how a test failed, to compare tests: equal sets mean that they failed alike."""
    failing = [check for check in cell.checks if check.status in FAILING]
    return {_kind(check, text_of(cell, check)) for check in failing}


def text_of(cell: CellResult, check: CheckResult) -> str:
    """Return the reason of a check without the name of its cell."""
    return check.reason.removeprefix(f"{cell_of(cell.nodeid)}: ")


def _is_own(check: CheckResult) -> bool:
    """Return whether a check's reason says how it failed, and is not the reason of an xfail."""
    return check.entry.get("xfail") in (None, check.entry["reason"])


def _kind(check: CheckResult, text: str) -> tuple[object, ...]:
    divergence = check.entry.get("divergence")
    if divergence is None or not _is_own(check):
        return check.status, text
    place = [divergence[name] for name in ("phase", "kind", "name", "signature")]
    culprit = check.culprit  # one tensor may be wrong for two reasons
    return check.status, *place, *((culprit.where, culprit.operation) if culprit else ())


def not_compared(cells: Iterable[CellResult]) -> list[tuple[str, int]]:
    """Count the tests that left kinds of tensors uncompared, by kinds and reason, most first."""
    counts: Counter[str] = Counter()
    for cell in cells:
        kinds: dict[str, dict[str, None]] = {}
        for check in cell.checks:
            for kind, reason in (check.entry.get("left_out") or {}).items():
                kinds.setdefault(reason, {})[kind] = None
        counts.update(visible(f"{', '.join(names)}: {reason}") for reason, names in kinds.items())
    return counts.most_common()


def noticed(cells: Iterable[CellResult]) -> list[tuple[str, int]]:
    """Count the tests by remark on something unusual but right, the most frequent first."""
    counts: Counter[str] = Counter()
    for cell in cells:
        words = (note for check in cell.checks for note in check.entry.get("notes") or ())
        counts.update(dict.fromkeys(map(visible, words), 1))
    return counts.most_common()


def unread_axes(cells: Iterable[CellResult]) -> list[str]:
    """Return lines on user-defined axes that no code read in tests that passed or compared tensors.

    An axis may change what is read, so that one that some cell of its test reads is not told.
    """
    tests: dict[str, list[CellResult]] = {}
    for cell in cells:
        if cell.passing or any(check.entry.get("observations") for check in cell.checks):
            tests.setdefault(cell.test, []).append(cell)
    cells_by_axis: dict[str, list[CellResult]] = {}
    for together in tests.values():
        for axis in sorted(set.intersection(*(set(cell.unread) for cell in together))):
            cells_by_axis.setdefault(axis, []).extend(together)
    return [
        f"no code read the axis {axis} in {count(len(together), 'cell')} of "
        f"{', '.join(dict.fromkeys(cell.test for cell in together))}"
        for axis, together in cells_by_axis.items()
    ]


def rerun(cells: Iterable[CellResult]) -> list[str]:
    """Return a line for each failed test that was run again, on whether it passed in the end."""
    return [
        f"{cell.nodeid} was run {count(cell.reruns, 'more time')} after a failure, and "
        f"{'failed again' if cell.failing else 'then passed'}"
        for cell in cells
        if cell.reruns
    ]
