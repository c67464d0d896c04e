"""Compare two reports of one test matrix: new, known and fixed failures, and slower tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.read import Report
from pytest_precision.report.reasons import fold, kinds_of
from pytest_precision.report.status import FAILING, count, duration
from pytest_precision.report.summary import preformatted, reason_lines

SLOWER_FACTOR = 1.5
SLOWER_SECONDS = 1.0
"""A cell is slower if it takes at least so many times as long, and so many seconds longer.

Runners of a CI vary by less, and a cell that is short varies by more."""


class Slower(NamedTuple):
    """A test that passes in both reports, and takes longer in the later one.

    Attributes:
        cell: in the later report.
        before: seconds in the earlier one.
    """

    cell: CellResult
    before: float


@dataclass(frozen=True)
class ChangedCells:
    """The differences between the test results of two reports.

    Attributes:
        new: cells that fail, and did not, or did for another reason.
        known: cells that fail as they did.
        fixed: cells that failed and pass.
        gone: cells that failed and did not run, or were skipped.
        slower: cells that take longer.
        cells: number of cells in the later report.
        finished: whether all planned cells of the later report ran.
    """

    new: tuple[CellResult, ...]
    known: tuple[CellResult, ...]
    fixed: tuple[CellResult, ...]
    gone: tuple[CellResult, ...]
    slower: tuple[Slower, ...]
    cells: int
    finished: bool

    @classmethod
    def of(cls, old: Report, new: Report) -> ChangedCells:
        """Compare two reports, test by test."""
        before = {_key(cell): cell for cell in old.cells}
        after = {_key(cell): cell for cell in new.cells}
        known = tuple(cell for cell in new.failing if _alike(cell, before.get(_key(cell))))
        fixed = tuple(c for c in old.failing if _key(c) in after and after[_key(c)].passing)
        return cls(
            new=tuple(cell for cell in new.failing if cell not in known),
            known=known,
            fixed=fixed,
            gone=tuple(
                cell
                for cell in old.failing
                if cell not in fixed and not (_key(cell) in after and after[_key(cell)].failing)
            ),
            slower=tuple(_slower(before, new.cells)),
            cells=len(new.cells),
            finished=new.finished,
        )

    @property
    def words(self) -> str:
        """Return a phrase with the numbers of new, known and fixed failures and of slower tests."""
        kinds = {"new": self.new, "known": self.known, "fixed": self.fixed, "slower": self.slower}
        return ", ".join(f"{len(cells)} {name}" for name, cells in kinds.items())

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        """Yield heading and node ids for each group of changed tests, such as new failures."""
        failed = {"New failures": self.new, "Known failures": self.known} | self._over
        for head, cells in failed.items():
            if cells:
                yield head, [cell.nodeid for cell in cells]
        if self.slower:
            yield "Slower", [_told(one) for one in self.slower]

    @property
    def _over(self) -> dict[str, tuple[CellResult, ...]]:
        return {"Fixed": self.fixed, "Failed, and did not run now": self.gone}

    def markdown(self) -> str:
        """Return the differences between two reports as Markdown, for a CI job's page."""
        return "".join(self.sections())

    def sections(self) -> Iterator[str]:
        """Yield the Markdown section by section: heading, number of cells, each group of tests."""
        yield f"## Precision matrix since the last report: {self.words}\n"
        yield f"\n{count(self.cells, 'cell')}.\n"
        if not self.finished:
            yield "\n**Not finished:** what did not run is not compared.\n"
        for head, cells in (("New failures", self.new), ("Known failures", self.known)):
            yield from _failures(head, cells)
        for head, cells in self._over.items():
            if cells:
                yield f"\n### {head}\n" + preformatted([cell.nodeid for cell in cells])
        if self.slower:
            yield "\n### Slower\n" + preformatted([_told(one) for one in self.slower])


def _failures(head: str, cells: Sequence[CellResult]) -> Iterator[str]:
    if cells:
        yield f"\n### {head}\n"
        yield from (preformatted(reason_lines(reason)) for reason in fold(cells, FAILING))


def _told(one: Slower) -> str:
    return f"{duration(one.before)} -> {duration(one.cell.seconds)}  {one.cell.nodeid}"


def _key(cell: CellResult) -> tuple[str, str]:
    """Return what identifies a test in both reports: node id and axis values."""
    return cell.nodeid, repr(sorted(cell.axes.items(), key=repr))


def _alike(cell: CellResult, before: CellResult | None) -> bool:
    """Return whether a test failed for the same reasons in the earlier report."""
    return before is not None and kinds_of(cell) == kinds_of(before)


def _slower(before: dict[tuple[str, str], CellResult], cells: Sequence[CellResult]) -> list[Slower]:
    found = []
    for cell in cells:
        then = before.get(_key(cell))
        if then is None or not (then.passing and cell.passing):
            continue
        longer = cell.seconds - then.seconds
        if cell.seconds >= SLOWER_FACTOR * then.seconds and longer >= SLOWER_SECONDS:
            found.append(Slower(cell, then.seconds))
    return sorted(found, key=lambda one: one.before - one.cell.seconds)
