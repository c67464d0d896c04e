"""Group failing tests by reason for the page, with one example of each in full.

What is in wait takes the place of the first where a filter leaves that out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.page.culprit import ShownCulprit, shown_culprit
from pytest_precision.report.page.doc_links import of_error, of_kind
from pytest_precision.report.page.heat import HeatTable, TensorHeats, heat_table, tensor_heats
from pytest_precision.report.page.line_plot import Plot
from pytest_precision.report.page.plots import plots
from pytest_precision.report.reasons import Reason, fold
from pytest_precision.report.status import FAILING, STATUSES

DETAILED = 40
"""Reasons that are shown in full; all further ones are a line."""

EXAMPLES = 4
"""Most cells of a reason that a page has in full, so that filters find one of their values."""

MORE_EXAMPLES = 24
"""Cells in full beyond the first of each reason, over all reasons, so that a page opens at once."""

LISTED = 200
"""Failing cells that are listed by name, over all reasons."""

Classes = Callable[[CellResult], str]


class Fact(NamedTuple):
    """A fact about a failing test, as a row of a table: name, value and URL of an explanation."""

    name: str
    value: str
    meaning: str = ""


class Listed(NamedTuple):
    """A failing test in a list: its HTML element, node id and filter classes."""

    anchor: str
    nodeid: str
    classes: str


class Example(NamedTuple):
    """One failing test with all details, as the HTML report shows it.

    Attributes:
        anchor: what the names of its elements begin with.
        nodeid: pytest's id.
        classes: those of the filters.
        entry: its check in report.json.
        culprit: the operation that made its first wrong value, if that is known.
        facts: of its first divergence and its two sides.
        heat: where the difference starts and how it spreads, if that is known.
        tensors: how it spreads over single tensors, if that is known.
        plots: curves and histogram.
    """

    anchor: str
    nodeid: str
    classes: str
    entry: Mapping[str, Any]
    culprit: ShownCulprit | None
    facts: list[Fact]
    heat: HeatTable | None
    tensors: list[TensorHeats]
    plots: list[Plot]


class Failure(NamedTuple):
    """All tests that failed for one reason, as the HTML report shows them.

    Attributes:
        anchor: the element.
        status: of the checks.
        sign: its character.
        text: the reason, a sentence.
        place: kind, step and tensor that differ first in the first cell; empty where none is known.
        cells: those that are listed, the first in full among them.
        number: of all cells.
        every: the classes of all cells.
        identical: whether all have just this reason.
        above: the element that shows another cell of this reason in full; empty if none does.
        examples: cells in full, of which the first is shown.
    """

    anchor: str
    status: str
    sign: str
    text: str
    place: tuple[str, str, str]
    cells: list[Listed]
    number: int
    every: list[str]
    identical: bool
    above: str
    examples: list[Example]


class Failures:
    """The failing tests of a report, grouped by shared axis values and by reason.

    Attributes:
        total: number of failing cells.
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        self.total = len(cells)
        self._anchors: dict[int, str] = {}
        self._reasons = 0
        self._full: dict[tuple[object, ...], str] = {}
        self._left = LISTED
        self._more = MORE_EXAMPLES

    def target(self, cell: CellResult) -> str:
        """Return the id of the HTML element of a failing test; empty for other tests."""
        return self._anchors.get(id(cell), "")

    def of(self, cells: Iterable[CellResult], classes: Classes) -> list[Failure]:
        """Group failing tests by reason, each with its examples for the HTML report."""
        return [self._failure(reason, classes) for reason in fold(cells, FAILING)]

    def _failure(self, reason: Reason, classes: Classes) -> Failure:
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
                listed.append(Listed(link, cell.nodeid, classes(cell)))
        above = self._full.get(reason.kind, "")
        full = not above and len(self._full) < DETAILED
        if full:
            self._full[reason.kind] = anchor
        return Failure(
            anchor,
            reason.status,
            STATUSES[reason.status].mark,
            reason.text or "no reason given",
            _place(reason.check.entry),
            listed,
            len(reason.cells),
            [classes(cell) for cell in reason.cells],
            reason.identical,
            above,
            self._examples(anchor, reason, classes) if full else [],
        )

    def _examples(self, anchor: str, reason: Reason, classes: Classes) -> list[Example]:
        """Return examples of a reason in full: the first test, and others with new axis values."""
        found: list[Example] = []
        known: set[str] = set()
        for cell, check in zip(reason.cells, reason.checks, strict=True):
            styles = classes(cell)
            if {*styles.split()} <= known or (found and not self._more):
                continue
            known.update(styles.split())
            self._more -= bool(found)
            found.append(_example(f"{anchor}e{len(found)}", cell, styles, check.entry))
            if len(found) == EXAMPLES:
                break
        return found


def _example(anchor: str, cell: CellResult, classes: str, entry: Mapping[str, Any]) -> Example:
    spread = entry.get("spread")
    return Example(
        anchor,
        cell.nodeid,
        classes,
        entry,
        shown_culprit(entry),
        _facts(cell, entry),
        heat_table(spread),
        tensor_heats(spread),
        plots(entry),
    )


def _place(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    divergence = entry.get("divergence")
    if not divergence:
        return "", "", ""
    return divergence["kind"], str(divergence["step"] or "start"), divergence["name"]


def _facts(cell: CellResult, entry: Mapping[str, Any]) -> list[Fact]:
    found = []
    if divergence := entry.get("divergence"):
        kind, signature = divergence["kind"], divergence["signature"]
        found = [
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
    found += [Fact(name, entry.get(name, "")) for name in ("gate", *sides)]
    found.append(Fact("run again", f"{cell.reruns} times" if cell.reruns else ""))
    return [fact for fact in found if fact.value]


def _element(divergence: Mapping[str, Any]) -> str:
    if divergence["index"] is None:
        return ""
    rank = divergence["rank"]
    where = "on every rank" if rank is None else f"on rank {rank}"
    return f"({', '.join(map(str, divergence['index']))}) {where}"
