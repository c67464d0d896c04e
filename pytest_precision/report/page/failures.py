"""Group failing tests by reason for the page, with one example of each in full.

What is in wait takes the place of the first where a filter leaves that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_precision.parity.culprit import BOTH_SIDES, Culprit, source_place
from pytest_precision.report.cell_result import CellResult, CheckResult
from pytest_precision.report.page.doc_links import of_error, of_kind
from pytest_precision.report.reasons import Reason, fold
from pytest_precision.report.status import FAILING

DETAILED = 40
"""Reasons that are shown in full; all further ones are a line."""

EXAMPLES = 4
"""Most cells of a reason that a page has in full, so that filters find one of their values."""

MORE_EXAMPLES = 24
"""Cells in full beyond the first of each reason, over all reasons, so that a page opens at once."""

LISTED = 200
"""Failing cells that are listed by name, over all reasons."""

MOST_MODULES = 200
"""Modules of a culprit that are shown; report.json has them all."""


class Fact(NamedTuple):
    """A fact about a failing test, as a row of a table: name, value and URL of an explanation."""

    name: str
    value: str
    meaning: str = ""


class Example(NamedTuple):
    """One failing test that the page shows with all details: its HTML element and its check."""

    anchor: str
    cell: CellResult
    check: CheckResult


class Failure(NamedTuple):
    """All tests that failed for one reason, as the HTML report shows them.

    Attributes:
        anchor: the element.
        reason: why they failed, and all of them.
        listed: those that are listed, each with its element; the first in full among them.
        above: the element that shows another cell of this reason in full; empty if none does.
        examples: cells in full, of which the first is shown.
    """

    anchor: str
    reason: Reason
    listed: list[tuple[str, CellResult]]
    above: str
    examples: list[Example]


class Failures:
    """The failing tests of a report, grouped by shared axis values and by reason.

    Args:
        classes: returns the CSS classes of a cell by which filters select it.
    """

    def __init__(self, classes: Callable[[CellResult], str]) -> None:
        self._classes = classes
        self._anchors: dict[int, str] = {}
        self._reasons = 0
        self._full: dict[tuple[object, ...], str] = {}
        self._left = LISTED
        self._more = MORE_EXAMPLES

    def target(self, cell: CellResult) -> str:
        """Return the id of the HTML element of a failing test; empty for other tests."""
        return self._anchors.get(id(cell), "")

    def of(self, cells: Iterable[CellResult]) -> list[Failure]:
        """Group failing tests by reason, each with its examples for the HTML report."""
        return [self._failure(reason) for reason in fold(cells, FAILING)]

    def _failure(self, reason: Reason) -> Failure:
        self._reasons += 1
        anchor = f"r{self._reasons}"
        listed = []
        for number, cell in enumerate(reason.cells):
            # A reason that comes late still names one of its cells.
            shown = self._left > 0 or number == 0
            link = f"{anchor}c{number}" if shown and number else anchor
            self._anchors.setdefault(id(cell), link)
            if shown:
                self._left -= 1
                listed.append((link, cell))
        above = self._full.get(reason.kind, "")
        examples = []
        if not above and len(self._full) < DETAILED:
            self._full[reason.kind] = anchor
            examples = self._examples(anchor, reason)
        return Failure(anchor, reason, listed, above, examples)

    def _examples(self, anchor: str, reason: Reason) -> list[Example]:
        """Return the tests to show in full: the first, and ones with new axis values."""
        examples: list[Example] = []
        shown_styles: set[str] = set()
        for cell, check in zip(reason.cells, reason.checks, strict=True):
            styles = {*self._classes(cell).split()}
            if styles <= shown_styles or (examples and not self._more):
                continue
            shown_styles |= styles
            self._more -= bool(examples)
            examples.append(Example(f"{anchor}e{len(examples)}", cell, check))
            if len(examples) == EXAMPLES:
                break
        return examples


def failure_facts(cell: CellResult, entry: Mapping[str, Any]) -> list[Fact]:
    """Return facts of a failing check, such as its first divergence, gate and candidate."""
    facts = []
    if divergence := entry.get("divergence"):
        kind, signature = divergence["kind"], divergence["signature"]
        facts = [
            Fact(
                "looks like",
                "" if signature == "values" else signature,
                of_error(divergence.get("error", "")),
            ),
            Fact("step", str(divergence["step"])),
            Fact("phase", divergence["phase"]),
            Fact("kind", kind, of_kind(kind)),
            Fact("tensor", divergence["name"]),
            Fact("element", _element(divergence)),
            Fact("candidate has", str(divergence["candidate"])),
            Fact("reference has", str(divergence["reference"])),
        ]
    sides = ("candidate", "reference", "criterion")
    facts += [Fact(name, entry.get(name, "")) for name in ("gate", *sides)]
    facts.append(Fact("run again", f"{cell.reruns} times" if cell.reruns else ""))
    return [fact for fact in facts if fact.value]


def _element(divergence: Mapping[str, Any]) -> str:
    if divergence["index"] is None:
        return ""
    rank = divergence["rank"]
    where = "on every rank" if rank is None else f"on rank {rank}"
    return f"({', '.join(map(str, divergence['index']))}) {where}"


def culprit_facts(culprit: Culprit) -> Sequence[tuple[str, str]]:
    """Return facts on the operation at fault, and on the reference's operation that matches it."""
    theirs = culprit.reference
    outside = " (no file of the project)" if culprit.outside and culprit.file else ""
    facts = [
        ("line", f"{culprit.where}{outside}"),
        ("function", culprit.function),
        ("operation", culprit.operation),
        ("module", culprit.module),
        ("rank", None if culprit.rank is None else str(culprit.rank)),
        ("reference", theirs and theirs.operation),
        ("reference line", theirs and source_place(theirs.file, theirs.line)),
        ("reference function", theirs and theirs.function),
    ]
    return [(name, value) for name, value in facts if value]


def constants_of_both(culprit: Culprit) -> list[tuple[str, str, str]]:
    """Return the arguments in which candidate and reference differ, with both values as text."""
    if culprit.constants is None:
        return []
    ours, theirs = (culprit.constants[side] for side in BOTH_SIDES)
    return [
        (name, str(ours.get(name, "none")), str(theirs.get(name, "none")))
        for name in dict.fromkeys([*ours, *theirs])
    ]
