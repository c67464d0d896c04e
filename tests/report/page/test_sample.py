"""The sample that the README links to is what this release writes."""

from __future__ import annotations

from pathlib import Path

from written import read_report

from pytest_precision.report.page.render import render
from pytest_precision.report.read import Report

SAMPLE = Path(__file__).parents[3] / "docs" / "sample"


def test_the_sample_is_up_to_date():
    """To write it anew: `python -m pytest_precision report html docs/sample`."""
    report = Report.of(read_report(SAMPLE / "report.json"))
    assert any(cell.failing for cell in report.cells)
    assert render(report) == (SAMPLE / "report.html").read_text("utf-8")
