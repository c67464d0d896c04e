"""The sample that the README links to is what this release writes."""

from __future__ import annotations

import re
from pathlib import Path

from written import read_report

from pytest_precision.report.page.render import render
from pytest_precision.report.read import Report

ABSOLUTE = re.compile(r"(?<![\w.:/<>)~*-])/[\w.-]+/|\b[A-Z]:\\\w+")
"""The start of an absolute path."""

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
    failed = [cell for cell in read_report(SAMPLE / "report.json")["cells"] if "repeat" in cell]
    assert {cell["gate"] for cell in failed} == {"agreement"}
    assert {cell["culprit"]["kind"] for cell in failed} == {"cast", "constant"}
    assert {cell["culprit"]["file"] for cell in failed} == {"test_storage.py"}
    for cell in failed:
        assert {*cell["curves"]["grad_norm"]} == {"candidate", "reference"}
        assert all(map(all, cell["curves"]["grad_norm"].values()))
        assert "param" in cell["spread"]["tensors"]


def test_the_sample_names_no_machine():
    """Neither its folders nor its commit, in the page as little as in the data."""
    (run,) = read_report(SAMPLE / "report.json")["environment"]["runs"]
    assert {name: run[name] for name in ("commit", "branch", "host")} == dict.fromkeys(
        ("commit", "branch", "host"), "example"
    )
    for name in ("report.json", "report.html"):
        text = (SAMPLE / name).read_text("utf-8")
        assert len(text) > 10_000
        assert ABSOLUTE.findall(text) == []


def test_an_absolute_path_is_found():
    """Of Linux, macOS and Windows, and no fraction, address or closing tag."""
    text = (
        'at /home/a/b.py:1, "/srv/x/y", C:\\Users\\a; https://a.b/c/d </td> 793 / 793 (a/b/c) 1/2/3'
    )
    assert ABSOLUTE.findall(text) == ["/home/", "/srv/", "C:\\Users"]
