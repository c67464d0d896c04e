"""Write a report as Markdown, for the page of a CI job.

All text of others is escaped and stands in `<pre>` or in a table of HTML without an empty line,
where neither Markdown nor HTML has a meaning.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple
from urllib.parse import quote

from pytest_precision._visible import visible
from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.grid import by_test, fixed, grid
from pytest_precision.report.page.doc_links import of_kind
from pytest_precision.report.provenance import earlier_of
from pytest_precision.report.read import Report
from pytest_precision.report.reasons import Reason, fold, not_compared, unread_axes
from pytest_precision.report.sharing import explain
from pytest_precision.report.status import FAILING, STATUSES, count, duration, step_name

SUMMARY_BYTES = 900 * 1024
"""Bytes. GitHub drops a summary above 1 MiB as a whole."""

CUT_BYTES = 200
"""Bytes for the sentence that says what was cut off."""

LINE_CHARACTERS = 120

TABLE_START = (
    "\n<table><tr><th>cells</th><th>differs first</th><th>reason</th><th>look at</th></tr>\n"
)

TABLE_END = "</table>\n"


def markdown_summary(report: Report, most: int = SUMMARY_BYTES, first: Iterable[str] = ()) -> str:
    """Return the report as Markdown; whole sections are dropped at the end if it is too long.

    Args:
        report: what to summarize.
        most: bytes that it may have.
        first: sections that come before.
    """
    sections = [*first, *_sections(report)]
    text = ""
    for number, section in enumerate(sections):
        # A row goes on the table that the section before has closed.
        longer = (text.removesuffix(TABLE_END) if section.startswith("<tr>") else text) + section
        if len(longer.encode()) > most - CUT_BYTES:
            return f"{text}\n{count(len(sections) - number, 'more section')} did not fit here.\n"
        text = longer
    return text


def _sections(report: Report) -> Iterator[str]:
    cells = report.cells
    failing = report.failing
    verdict = f"{len(failing)} of {count(len(cells), 'cell')} failed"
    yield f"## Precision matrix: {verdict if failing else count(len(cells), 'cell')}\n\n"
    counts = Counter(cell.status for cell in cells)
    words = [f"{counts[name]} {STATUSES[name].word}" for name in STATUSES if counts[name]]
    yield f"{', '.join(words) or 'No cell ran'} in {duration(report.seconds)}.\n"
    earlier = earlier_of(report.environment.get("flags", {}))
    if earlier:
        yield f"\n**In time:** {_inert(earlier)}.\n"
    if not report.finished:
        yield f"\n**Not finished:** {report.ran}.\n"
    links = SummaryLinks.of(report.environment, os.environ)
    for part in explain(failing, report.passing) if failing else []:
        yield preformatted([part.statement(failing)]) if part.conditions else ""
        yield TABLE_START + TABLE_END
        for reason in fold(part.cells, FAILING):
            yield _row(reason, links) + TABLE_END
    if failing and links.artifacts:
        yield f'\nThe page with all of this is in <a href="{links.artifacts}">the artifacts</a>.\n'
    for of_test in by_test(cells):
        yield preformatted(_grid(of_test))
    left_out = [f"in {count(number, 'cell')}: {text}" for text, number in not_compared(cells)]
    if left_out:
        yield "\n### Not compared\n" + preformatted(left_out)
    notes = unread_axes(cells)
    if notes:
        yield "\n### Not read\n" + preformatted(notes)


def preformatted(lines: Sequence[str]) -> str:
    """Return lines as an HTML block with all characters escaped."""
    return f"\n<pre>{escape(visible(chr(10).join(lines)))}</pre>\n"


def _row(reason: Reason, links: SummaryLinks) -> str:
    """Return a reason to fail as a table row: tests, first difference, cause, where to look."""
    divergence = reason.check.entry.get("divergence", {})
    first = [f"{divergence['kind']}, {step_name(divergence['step'])}"] if divergence else []
    text, *below = reason.lines
    repeat = reason.check.entry.get("repeat")
    code = [f"<code>{_inert(line)}</code>" for line in ([repeat] if repeat else [])]
    columns = (
        f"{STATUSES[reason.status].mark} {len(reason.cells)}",
        "<br>".join(map(_inert, first)),
        "<br>".join([f"<b>{_inert(text)}</b>", *map(_inert, below), *code]),
        "<br>".join(links.of_reason(reason)),
    )
    return f"<tr>{''.join(f'<td>{column}</td>' for column in columns)}</tr>\n"


def _inert(text: str) -> str:
    """Return a text as one line of HTML with all characters escaped."""
    return escape(visible(" ".join(text.split())))


def reason_lines(reason: Reason) -> list[str]:
    """Return a reason to fail as lines with its tests and the command that repeats the first."""
    text, *below = reason.lines
    head = f"{STATUSES[reason.status].mark} {reason.times}{text}"
    repeat = reason.check.entry.get("repeat")
    return [head, *(f"  {line}" for line in (*below, *([repeat] if repeat else [])))]


def _grid(cells: Sequence[CellResult]) -> list[str]:
    head = cells[0].test
    alike = fixed(cells)
    if all(cell.passing for cell in cells):
        return [f"{head}: {count(len(cells), 'cell')}, all passed"]
    lines = ["".join(text for text, _ in line).rstrip() for line in grid(cells, LINE_CHARACTERS)]
    return [head, *([f"  with {alike}"] if alike else []), *lines]


def counts(report: Report) -> str:
    """Return the outcome and the numbers of tests and failures as `name=value` lines."""
    failed = len(report.failing)
    return f"outcome={_outcome(report, failed)}\ncells={len(report.cells)}\nfailed={failed}"


def _outcome(report: Report, failed: int) -> str:
    if failed:
        return "failed"
    return "passed" if report.finished and report.cells else "unfinished"


class SummaryLinks(NamedTuple):
    """Link targets in a job summary: the run's artifacts and the commit's files on GitHub.

    Attributes:
        artifacts: the list of them on the page of the run; empty where there is none.
        files: the files of the commit; empty where they have no address.
    """

    artifacts: str
    files: str

    @classmethod
    def of(cls, environment: Mapping[str, Any], variables: Mapping[str, str]) -> SummaryLinks:
        """Return the link targets of this CI job; empty ones outside GitHub.

        Args:
            environment: of the report, whose commit need not be that of the job.
            variables: of this process.
        """
        names = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY", "GITHUB_RUN_ID")
        server, repository, run = (quote(variables.get(name, ""), safe=":/") for name in names)
        if not (server and repository and run):
            return cls("", "")
        commits = {run["commit"] for run in environment.get("runs", []) if "commit" in run}
        commit = quote(commits.pop()) if len(commits) == 1 else ""
        home = f"{server}/{repository}"
        return cls(
            f"{home}/actions/runs/{run}#artifacts", f"{home}/blob/{commit}/" if commit else ""
        )

    def of_reason(self, reason: Reason) -> list[str]:
        """Return links to the line that caused a failure and to advice on its first difference."""
        file, line = reason.place
        place = escape(visible(f"{file}:{line}"))
        address = f"{self.files}{quote(file)}#L{line}"
        links = [f'<a href="{address}">{place}</a>' if self.files else place]
        divergence = reason.check.entry.get("divergence")
        if divergence:
            links.append(f'<a href="{escape(of_kind(divergence["kind"]))}">where to look</a>')
        return links
