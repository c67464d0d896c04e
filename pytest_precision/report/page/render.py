"""Render a report as an HTML page, and write it next to report.json."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from pytest_precision._interrupts import postponed
from pytest_precision._visible import visible
from pytest_precision.errors import ReportError
from pytest_precision.parity.verdict import again
from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.changed_cells import ChangedCells
from pytest_precision.report.grid import by_test, fixed
from pytest_precision.report.page import failures, heat
from pytest_precision.report.page.doc_links import MEANING
from pytest_precision.report.page.failures import Failures
from pytest_precision.report.page.filters import Filters
from pytest_precision.report.page.grid_table import page_grid
from pytest_precision.report.page.plots import plots
from pytest_precision.report.page.run_facts import read_environment, run_facts, side_facts
from pytest_precision.report.past_reports import CellHistories
from pytest_precision.report.read import Report, read_report
from pytest_precision.report.reasons import fold, not_compared, rerun, unread_axes
from pytest_precision.report.report_files import PAGE_NAME, page_in
from pytest_precision.report.score_tables import FIGURES, by_layer, scored_ways
from pytest_precision.report.sharing import explain
from pytest_precision.report.status import FAILING, IN_PART, STATUSES, count, duration

PAGE_FOLDER = Path(__file__).parent

MOST_SCORED = 40
"""Ways of scoring of which the page shows each module; report.json has them all."""

MOST_AGAIN = 8
"""Cells that are named in one command; of more, pytest knows which ones failed last."""


def write_page(
    folder: Path, earlier_reports: Sequence[Report] = (), *, force: bool | None = None
) -> Path:
    """Write report.html next to the report.json of a folder; return its path.

    Args:
        folder: where it lies.
        earlier_reports: see `render`.
        force: see `Destination`.

    Raises:
        ReportError: there is no report.json that this release can read.
        OSError: the page cannot be written.
    """
    page = page_in(folder, force)
    page.expect_free()
    text = render(Report.of(read_report(folder)), earlier_reports)
    with postponed():
        page.put(text)
    return page.path


def page_of_session(cells: Sequence[object], folder: Path | None) -> list[str]:
    """Write the page beside the report.json of a session, and return a line that says where.

    Raises:
        ReportError: it could not be written, for whatever reason.
    """
    if folder is None:
        return []
    try:
        return [f"the report is {write_page(folder)}"]
    except Exception as error:
        raise ReportError(f"{PAGE_NAME} could not be written: {error}") from error


def render(report: Report, earlier_reports: Sequence[Report] = ()) -> str:
    """Return the HTML text of a report.

    Args:
        report: what the page shows.
        earlier_reports: the oldest first; the page says what has changed since the last one, and of
            several how each cell ended in all of them.
    """
    cells = report.cells
    failing = report.failing
    filters = Filters(cells)
    page_failures = Failures(filters.classes)
    parts = [
        (part.statement(failing), page_failures.of(part.cells))
        for part in (explain(failing, report.passing) if failing else [])
    ]
    counts = Counter(cell.status for cell in cells)
    style = (PAGE_FOLDER / "page.css").read_text(encoding="utf-8") + filters.style()
    script = (PAGE_FOLDER / "filter.js").read_text(encoding="utf-8")
    return _template().render(
        report=report,
        headline=_headline(cells, failing),
        run_facts=[*side_facts(cells), *run_facts(report.environment)],
        counts={name: counts[name] for name in STATUSES if counts[name]},
        in_part=IN_PART,
        seconds=duration(report.seconds),
        changed=ChangedCells.of(earlier_reports[-1], report) if earlier_reports else None,
        history=CellHistories.of([*earlier_reports, report]) if len(earlier_reports) > 1 else None,
        parts=parts,
        reasons=[failure for _, part_failures in parts for failure in part_failures],
        classes=filters.classes,
        target=page_failures.target,
        again=_again(failing),
        rerun=rerun(cells),
        others=[r for r in fold(cells, [s for s in STATUSES if s not in FAILING]) if r.text],
        left_out=not_compared(cells),
        unread=unread_axes(cells),
        scored=[*scored_ways(check.entry for cell in cells for check in cell.checks)],
        grids=[page_grid(test_cells) for test_cells in by_test(cells)],
        filters=filters.groups,
        settings=read_environment(report.environment),
        # Nothing of others is in either.
        style=Markup(style),
        script=Markup(script),
        policy=f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        "base-uri 'none'; form-action 'none'",
    )


@cache
def _template() -> jinja2.Template:
    engine = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PAGE_FOLDER),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_inert,
    )
    engine.globals.update(
        STATUSES=STATUSES,
        MEANING=MEANING,
        LISTED=failures.LISTED,
        MOST_SCORED=MOST_SCORED,
        MOST_MODULES=failures.MOST_MODULES,
        count=count,
        fixed=fixed,
        plots=plots,
        failure_facts=failures.failure_facts,
        culprit_facts=failures.culprit_facts,
        constants_of_both=failures.constants_of_both,
        column_labels=heat.column_labels,
        heat_rows=heat.heat_rows,
        module_heats=heat.module_heats,
        share_heat=heat.share_heat,
        by_layer=by_layer,
        FIGURES=FIGURES,
        tensor_heats=heat.tensor_heats,
    )
    return engine.get_template("page.html")


def _inert(value: Any) -> Any:
    """Replace control and bidirectional characters in text by visible escapes."""
    return visible(value) if type(value) is str else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _headline(cells: Sequence[CellResult], failing: Sequence[CellResult]) -> str:
    if not cells:
        return "No cell ran"
    if failing:
        return f"{len(failing)} of {count(len(cells), 'cell')} failed"
    passed = sum(cell.passing for cell in cells)
    return "All cells passed" if passed == len(cells) else f"{passed} of {len(cells)} cells passed"


def _again(failing: Sequence[CellResult]) -> str:
    """Return the command that reruns all failing tests; empty if one command cannot rerun all.

    A comparison of two recordings has a command of its own, as has a check against a commit.
    """
    alone = (c.entry.get("repeat") == again(cell.nodeid) for cell in failing for c in cell.checks)
    if len(failing) < 2 or not all(alone):
        return ""
    if len(failing) > MOST_AGAIN:
        return again(options="--last-failed")
    return again(*(cell.nodeid for cell in failing))
