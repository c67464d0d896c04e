"""Defects of public trackers are found, from the step on at which they act, and at their line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import in_this_process  # noqa: F401
import pytest
from followed_files import followed

from pytest_precision import Cell, Parity, ParityError, Verdict

ROOT = Path(__file__).parents[2]

sys.path.append(str(ROOT / "fixtures" / "reports"))

import resumed  # noqa: E402
from public_reports import FOLDER, REPORTS, RESTARTS, Report, Resumed  # noqa: E402

IN_CI = (
    "rate_by_microbatch",
    "clips_scaled_gradients",
    "mode_left_on",
    "zeroed_each_microbatch",
    "padding_is_learned",
    "no_backward_of_block",
    "norms_decayed",
    "early",
    "swapped",
)
"""One of each way to be wrong, such as a rate, a mode, a write in place, a restart."""


def marked(reports: tuple[Any, ...]) -> Iterator[Any]:
    """Yield each report as a parameter: those that are not in CI run by night."""
    for report in reports:
        name = report.name if isinstance(report, Report) else report.defect
        yield pytest.param(report, id=name, marks=() if name in IN_CI else pytest.mark.nightly)


def refused(parity: Parity, *sides: Any, **terms: Any) -> Verdict:
    with pytest.raises(ParityError) as failure:
        parity.check(*sides, **terms)
    return failure.value.verdict


@pytest.mark.parametrize("report", marked(REPORTS))
def test_a_report_has_its_step_and_its_line(
    parity_here: Callable[[Cell], Parity], report: Report
) -> None:
    """The first tensor that differs is where the mechanism acts, and the line is one of its own."""
    cell = Cell(sequence=f"train{report.steps}")
    sides = (followed(report.script, *words) for words in (report.words, report.right))
    verdict = refused(parity_here(cell), *sides)
    first, culprit = verdict.divergence, verdict.culprit
    assert first is not None
    assert (first.step, first.kind) == (report.step, report.kind), verdict.headline
    assert culprit is not None, verdict.details
    (line,) = [row.text for row in culprit.source if row.number == culprit.line]
    assert report.line in line, culprit.text
    if report.name == "rate_by_microbatch":
        assert "; this line sets it 2 times before one update" in culprit.text


@pytest.mark.parametrize("restart", marked(RESTARTS))
def test_a_restart_differs_from_the_load_on(
    parity_here: Callable[[Cell], Parity], restart: Resumed
) -> None:
    """Only the wrong trainer exists: it is compared with its own run that goes on."""
    cell = Cell(sequence="train3-save-load-train3", extra=(("defect", restart.defect),))
    whole = cell.replace(sequence="train6")
    verdict = refused(parity_here(cell), resumed.trains, resumed.trains, reference_cell=whole)
    assert verdict.divergence is not None
    assert (verdict.divergence.step, verdict.divergence.kind) == (
        restart.step,
        restart.kind,
    ), verdict.headline
    assert verdict.culprit is not None
    screen = verdict.brief
    assert any(restart.words in line for line in screen), screen


def test_each_script_is_of_a_report() -> None:
    """And each report is in the table of the page, with its step and the tensor that differs."""
    scripts = {file.stem for file in FOLDER.glob("*.py")} - {"public_reports", "resumed"}
    assert scripts <= {report.script.stem for report in REPORTS}
    page = (ROOT / "docs" / "evidence" / "catalogue.md").read_text()
    for report in REPORTS:
        assert (
            f"| `{report.name}` | {report.source} | step {report.step}, `{report.kind}` |" in page
        )
    for restart in RESTARTS:
        assert f"| `resumed:{restart.defect}` | {restart.source} | " in page
