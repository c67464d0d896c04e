"""Failures: cells that failed for one reason, with one of them in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pytest_precision.report.collect import CellResult
from pytest_precision.report.page.culprit import ShownCulprit, shown_culprit
from pytest_precision.report.page.heat import HeatTable, heat_table
from pytest_precision.report.page.plots import Plot, plots
from pytest_precision.report.reasons import Reason, fold
from pytest_precision.report.status import FAILING, STATUSES

DETAILED = 40
"""Reasons that are shown in full; all further ones are a line."""

LISTED = 200
"""Failing cells that are listed by name, over all reasons."""


class Listed(NamedTuple):
    """A failing cell by name: its element, its node id and the classes of the filters."""

    anchor: str
    nodeid: str
    classes: str


class Failure(NamedTuple):
    """All cells that failed for one reason.

    Attributes:
        anchor: the element.
        status: of the checks.
        sign: its character.
        text: the reason, a sentence.
        cells: those that are listed, the representative first.
        number: of all cells.
        identical: whether all have just this reason.
        above: the element that shows another cell of this reason in full; empty if none does.
        entry: the representative's check in report.json; None if it is not shown in full.
        culprit: the operation that made its first wrong value, if that is known.
        facts: name to value, of its first divergence and its two sides.
        heat: where the difference starts and how it spreads, if that is known.
        plots: of the representative.
    """

    anchor: str
    status: str
    sign: str
    text: str
    cells: list[Listed]
    number: int
    identical: bool
    above: str
    entry: Mapping[str, Any] | None
    culprit: ShownCulprit | None
    facts: list[tuple[str, str]]
    heat: HeatTable | None
    plots: list[Plot]


class Failures:
    """The failing cells of a report, in the order of the statements about them.

    Attributes:
        total: number of failing cells.
    """

    def __init__(self, cells: Sequence[CellResult]) -> None:
        self.total = len(cells)
        self._anchors: dict[int, str] = {}
        self._reasons = 0
        self._full: dict[tuple[object, ...], str] = {}
        self._left = LISTED

    def target(self, cell: CellResult) -> str:
        """Return the element that tells of a cell; empty for one that did not fail."""
        return self._anchors.get(id(cell), "")

    def of(self, cells: Iterable[CellResult], classes: Any) -> list[Failure]:
        """Fold some of the failing cells by reason."""
        return [self._failure(reason, classes) for reason in fold(cells, FAILING)]

    def _failure(self, reason: Reason, classes: Any) -> Failure:
        self._reasons += 1
        anchor = f"r{self._reasons}"
        listed = []
        for number, cell in enumerate(reason.cells):
            # A reason that comes late still names one of its cells.
            shown = self._left > 0 or number == 0
            own = f"{anchor}c{number}" if shown and number else anchor
            self._anchors.setdefault(id(cell), own)
            if shown:
                self._left -= 1
                listed.append(Listed(own, cell.nodeid, classes(cell)))
        above = self._full.get(reason.kind, "")
        full = not above and len(self._full) < DETAILED
        if full:
            self._full[reason.kind] = anchor
        entry = reason.check.entry if full else None
        return Failure(
            anchor,
            reason.status,
            STATUSES[reason.status].mark,
            reason.text or "no reason given",
            listed,
            len(reason.cells),
            reason.identical,
            above,
            entry,
            shown_culprit(entry or {}),
            _facts(entry or {}),
            heat_table((entry or {}).get("spread")),
            plots(entry or {}),
        )


def _facts(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    if divergence := entry.get("divergence"):
        signature = divergence["signature"]
        found = [
            ("looks like", "" if signature == "values" else signature),
            ("step", str(divergence["step"])),
            ("phase", divergence["phase"]),
            ("kind", divergence["kind"]),
            ("tensor", divergence["name"]),
            ("element", _element(divergence)),
            ("candidate has", str(divergence["candidate"])),
            ("reference has", str(divergence["reference"])),
        ]
    sides = ("candidate", "reference", "criterion")
    found += [(name, entry.get(name, "")) for name in ("gate", *sides)]
    return [(name, value) for name, value in found if value]


def _element(divergence: Mapping[str, Any]) -> str:
    if divergence["index"] is None:
        return ""
    rank = divergence["rank"]
    where = "on every rank" if rank is None else f"on rank {rank}"
    return f"({', '.join(map(str, divergence['index']))}) {where}"
