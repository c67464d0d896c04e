"""Compare two reports of one test matrix: new, known and fixed failures, and slower tests."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.read import Report
from pytest_precision.report.reasons import fold, kinds_of
from pytest_precision.report.status import FAILING, count, duration
from pytest_precision.report.summary import preformatted, reason_lines

SLOWER_FACTOR = 1.5
SLOWER_SECONDS = 1.0
"""A cell is slower if it takes at least so many times as long, and so many seconds longer.

Runners of a CI vary by less, and a cell that is short varies by more."""


@dataclass(frozen=True)
class ChangedCells:
    """The differences between the test results of two reports.

    Attributes:
        new: cells that fail, and did not, or did for another reason.
        known_failures: cells that fail as they did.
        fixed: cells that failed and pass.
        gone: cells that failed and did not run, or were skipped.
        slower: cells that pass in both and take longer in the later one, each with its seconds in
            the earlier one.
        cells: number of cells in the later report.
        finished: whether all planned cells of the later report ran.
    """

    new: tuple[CellResult, ...]
    known_failures: tuple[CellResult, ...]
    fixed: tuple[CellResult, ...]
    gone: tuple[CellResult, ...]
    slower: tuple[tuple[CellResult, float], ...]
    cells: int
    finished: bool

    @classmethod
    def of(cls, old: Report, new: Report) -> ChangedCells:
        """Compare two reports; return tests that newly or still fail, are fixed, gone or slower."""
        before = {identity_of(cell): cell for cell in old.cells}
        after = {identity_of(cell): cell for cell in new.cells}
        known_failures = tuple(
            cell for cell in new.failing if _alike(cell, before.get(identity_of(cell)))
        )
        fixed = tuple(
            c for c in old.failing if identity_of(c) in after and after[identity_of(c)].passing
        )
        return cls(
            new=tuple(cell for cell in new.failing if cell not in known_failures),
            known_failures=known_failures,
            fixed=fixed,
            gone=tuple(
                cell
                for cell in old.failing
                if cell not in fixed
                and not (identity_of(cell) in after and after[identity_of(cell)].failing)
            ),
            slower=tuple(_slower(before, new.cells)),
            cells=len(new.cells),
            finished=new.finished,
        )

    @property
    def words(self) -> str:
        """Return a text that counts new, known (in both reports), fixed failures, slower tests."""
        kinds = {
            "new": self.new,
            "known": self.known_failures,
            "fixed": self.fixed,
            "slower": self.slower,
        }
        return ", ".join(f"{len(cells)} {name}" for name, cells in kinds.items())

    def groups(self) -> Iterator[tuple[str, list[str]]]:
        """Yield heading and node ids for each group of changed tests, such as new failures."""
        for head, cells in self._failed_cells.items():
            if cells:
                yield head, [cell.nodeid for cell in cells]
        if self.slower:
            yield (
                "Slower",
                [
                    f"{duration(before)} -> {duration(cell.seconds)}  {cell.nodeid}"
                    for cell, before in self.slower
                ],
            )

    @property
    def _failed_cells(self) -> dict[str, tuple[CellResult, ...]]:
        return {
            "New failures": self.new,
            "Known failures": self.known_failures,
            "Fixed": self.fixed,
            "Failed, and did not run now": self.gone,
        }

    def sections(self) -> Iterator[str]:
        """Yield Markdown section by section: heading, number of cells, each group of tests."""
        yield f"## Precision matrix since the last report: {self.words}\n"
        yield f"\n{count(self.cells, 'cell')}.\n"
        if not self.finished:
            yield "\n**Not finished:** what did not run is not compared.\n"
        for head, lines in self.groups():
            title = f"\n### {head}\n"
            if head in ("New failures", "Known failures"):
                yield title
                for reason in fold(self._failed_cells[head], FAILING):
                    yield preformatted(reason_lines(reason))
            else:
                yield title + preformatted(lines)


def identity_of(cell: CellResult) -> tuple[str, str]:
    """Return node id and axis values of a test, which identify the test in both reports."""
    return cell.nodeid, repr(sorted(cell.axes.items(), key=repr))


def _alike(cell: CellResult, earlier_cell_result: CellResult | None) -> bool:
    """Return whether the test failed for the same reasons in both reports."""
    return earlier_cell_result is not None and kinds_of(cell) == kinds_of(earlier_cell_result)


def _slower(
    earlier_cell_results: dict[tuple[str, str], CellResult], cells: Sequence[CellResult]
) -> list[tuple[CellResult, float]]:
    slower_cells = []
    for cell in cells:
        then = earlier_cell_results.get(identity_of(cell))
        if then is None or not (then.passing and cell.passing):
            continue
        longer = cell.seconds - then.seconds
        if cell.seconds >= SLOWER_FACTOR * then.seconds and longer >= SLOWER_SECONDS:
            slower_cells.append((cell, then.seconds))
    return sorted(slower_cells, key=lambda pair: pair[1] - pair[0].seconds)
