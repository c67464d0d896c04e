"""The sample that the README links to is what this release writes."""

from __future__ import annotations

import re
from pathlib import Path

from written import read_report

from pytest_precision.report.page.render import render
from pytest_precision.report.read import Report

SAMPLE = Path(__file__).parents[3] / "docs" / "sample"


def test_the_sample_is_up_to_date():
    """To write the page anew: `python -m pytest_precision report html docs/sample`."""
    report = Report.of(read_report(SAMPLE / "report.json"))
    assert any(cell.failing for cell in report.cells)
    assert render(report) == (SAMPLE / "report.html").read_text("utf-8")


def test_the_sample_has_what_reports_have():
    """A gate and a line for each failure, and no folder of the machine that made it.

    To make it anew: `python ci/bench/sample.py`.
    """
    text = (SAMPLE / "report.json").read_text("utf-8")
    failed = [cell for cell in read_report(SAMPLE / "report.json")["cells"] if "repeat" in cell]
    assert {cell["gate"] for cell in failed} == {"agreement"}
    assert {cell["culprit"]["kind"] for cell in failed} == {"cast", "constant"}
    assert {cell["culprit"]["file"] for cell in failed} == {"test_storage.py"}
    assert str(SAMPLE.parents[1]) not in text
    assert not re.search(r"/(home|root|tmp|usr|opt)/", text)
