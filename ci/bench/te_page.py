"""Tables of tests of others, in the page that ci/te writes: one for each project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import te_causes

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "evidence" / "transformer-engine.md"
HEADER = (
    "| tests | passed | failed | skipped | of | why some failed |",
    "| --- | --- | --- | --- | --- | --- |",
)
NOT_RUN = "not run"

Row = list[str]
"""The cells of a file beside its name: passed, failed, skipped, of how many, why some failed."""


def row(lines: Iterable[Mapping[str, object]], every: int = 1) -> Row:
    """Return the cells of a file, of the lines that `te_outcomes` wrote on its ranks.

    A test failed if it failed on one of them, and was skipped if it was skipped on all.

    Args:
        lines: what was written, of all ranks.
        every: one of so many tests was run.
    """
    outcomes: dict[str, Mapping[str, object]] = {}
    total = 0
    for line in lines:
        total = max(total, int(str(line.get("collected", 0))))
        if "test" in line and _worse(line, outcomes.get(str(line["test"]))):
            outcomes[str(line["test"])] = line
    if not outcomes:
        return [NOT_RUN, "", "", "", "no test was collected"]
    number = Counter(str(line["outcome"]) for line in outcomes.values())
    share = "" if every == 1 else f", one of {every}"
    left = f", ended after {len(outcomes)}" if len(outcomes) < total else ""
    failed = (line for line in outcomes.values() if line["outcome"] == "failed")
    whys = Counter(te_causes.why(str(line["test"]), str(line["why"])) for line in failed)
    why = "; ".join(f"{text} ({times})" for text, times in whys.most_common())
    return [*(str(number[kind]) for kind in _OUTCOMES), f"{total}{share}{left}", why]


def is_in_order(cells: Row) -> bool:
    """Return whether a file was run, and each of its failures has a cause that is known."""
    return cells[0] != NOT_RUN and te_causes.UNEXPLAINED not in cells[-1]


def read_rows(project: str) -> dict[str, Row]:
    """Return the rows of a project's table by their first cell."""
    begin, end = _marks(project)
    table = PAGE.read_text().partition(begin)[2].partition(end)[0]
    split = [line.strip("|").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    rows = {cells[0].strip(): [c.strip() for c in cells[1:]] for cells in split}
    return {name: cells for name, cells in rows.items() if name not in ("tests", "---")}


def write_rows(project: str, measured: str, rows: Mapping[str, Row]) -> None:
    """Write the table of a project in place of the one in the page, which is whole at any time.

    Args:
        project: name of the table.
        measured: a sentence that says with what it was measured.
        rows: cells by the name of a row, in order.
    """
    begin, end = _marks(project)
    before, _, rest = PAGE.read_text().partition(begin)
    table = [*HEADER, *(f"| {' | '.join([name, *cells])} |" for name, cells in rows.items())]
    section = "\n".join([begin, "", measured, "", *table, "", end])
    written = PAGE.with_suffix(".part")
    written.write_text(before + section + rest.partition(end)[2])
    written.replace(PAGE)


_OUTCOMES = ("passed", "failed", "skipped")


def _worse(line: Mapping[str, object], than: Mapping[str, object] | None) -> bool:
    order = ("skipped", "passed", "failed")
    return than is None or order.index(str(line["outcome"])) > order.index(str(than["outcome"]))


def _marks(project: str) -> tuple[str, str]:
    return f"<!-- ci/te: {project} begins -->", f"<!-- ci/te: {project} ends -->"
