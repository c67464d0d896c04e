"""Tell how each cell ended in one report after another: new, fixed, flaky and slower ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from pytest_precision._visible import visible
from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.changed_cells import SLOWER_FACTOR, SLOWER_SECONDS, identity_of
from pytest_precision.report.page.run_facts import run_facts
from pytest_precision.report.read import Report
from pytest_precision.report.status import STATUSES, count, duration

NOT_IN_REPORT = " "
"""Takes the place of a mark in a report that does not have the cell."""

HISTORY_WORDS = ("flaky", "new", "failing", "slower", "fixed", "gone")
"""What the cells are that are listed, in their order."""


class CellHistory(NamedTuple):
    """One cell in several reports.

    Attributes:
        nodeid: pytest's id of the test.
        results: of each report, in their order; None where it is not in one.
    """

    nodeid: str
    results: tuple[CellResult | None, ...]

    @property
    def strip(self) -> str:
        """Return the marks of the cell, one a report."""
        return "".join(
            NOT_IN_REPORT if result is None else STATUSES[result.status].mark
            for result in self.results
        )

    @property
    def word(self) -> str:
        """Return one of `HISTORY_WORDS`; empty for one that passes as fast as ever."""
        ended = [result.failing for result in self.results if result is not None]
        changes = sum(before != after for before, after in pairwise(ended))
        if changes > 1:
            return "flaky"
        if self.results[-1] is None:
            return "gone" if ended[-1] else ""
        if ended[-1]:
            is_first = len(ended) == 1 < len(self.results)
            return "new" if changes or is_first else "failing"
        return "fixed" if changes else "slower" if self.usual is not None else ""

    @property
    def usual(self) -> float | None:
        """Return the median seconds of earlier passes, if the last one took much longer."""
        *earlier, last = (result for result in self.results if result is not None)
        seconds = [result.seconds for result in earlier if result.passing]
        if not seconds or not last.passing:
            return None
        usual = median(seconds)
        longer = last.seconds - usual
        is_slower = last.seconds >= SLOWER_FACTOR * usual and longer >= SLOWER_SECONDS
        return usual if is_slower else None

    @property
    def in_words(self) -> str:
        """Return how the cell ended in each report in words, for those who do not see the strip."""
        return ", ".join(
            "not in it" if result is None else STATUSES[result.status].word
            for result in self.results
        )

    @property
    def line(self) -> str:
        """Return the cell in a line: its strip, what it is, and its name."""
        last = self.results[-1]
        times = ""
        if self.word == "slower" and last is not None and self.usual is not None:
            times = f"  {duration(self.usual)} -> {duration(last.seconds)}"
        return f"{self.strip}  {self.word:7}  {visible(self.nodeid)}{times}"


class CellHistories(NamedTuple):
    """How the cells ended in several reports.

    Attributes:
        listed: the cells that are not as ever, in the order of `HISTORY_WORDS`.
        as_ever: the number of all other cells.
    """

    listed: tuple[CellHistory, ...]
    as_ever: int

    @classmethod
    def of(cls, reports: Sequence[Report]) -> CellHistories:
        """Return the history of the cells of reports, the oldest first."""
        cells = histories(reports)
        listed = tuple(cell for word in HISTORY_WORDS for cell in cells if cell.word == word)
        return cls(listed, len(cells) - len(listed))

    @property
    def words(self) -> str:
        """Return how many cells are what, such as `1 flaky, 2 new, 40 as ever`."""
        words = [cell.word for cell in self.listed]
        counts = [f"{words.count(word)} {word}" for word in HISTORY_WORDS if word in words]
        return ", ".join([*counts, f"{self.as_ever} as ever"])


def histories(reports: Sequence[Report]) -> list[CellHistory]:
    """Return the history of each cell, in the order in which the reports name them."""
    by_key: list[Mapping[object, CellResult]] = [
        {identity_of(cell): cell for cell in report.cells} for report in reports
    ]
    keys = dict.fromkeys(key for cells in by_key for key in cells)
    return [
        CellHistory(
            next(cells[key].nodeid for cells in by_key if key in cells),
            tuple(cells.get(key) for cells in by_key),
        )
        for key in keys
    ]


def history_lines(reports: Sequence[Report], names: Sequence[str]) -> Iterator[str]:
    """Yield lines on reports: which they are, how many cells are what, and a strip for each cell.

    Args:
        reports: the oldest first.
        names: of them.
    """
    for number, (report, name) in enumerate(zip(reports, names, strict=True), 1):
        facts = run_facts(report.environment)[0]
        unfinished = "" if report.finished else " · not finished"
        yield visible(f"{number}  {name}: {facts} · {count(len(report.cells), 'cell')}{unfinished}")
    history = CellHistories.of(reports)
    yield ""
    yield history.words
    yield from (cell.line for cell in history.listed)
