"""Annotations: one workflow command of GitHub per reason to fail, shown next to the test."""

from __future__ import annotations

from pytest_precision._visible import visible
from pytest_precision.report.read import Report
from pytest_precision.report.reasons import Reason, fold
from pytest_precision.report.status import FAILING
from pytest_precision.report.words import count

MOST = 10
"""Errors that GitHub shows of one step; further ones are dropped without a word."""


def workflow_commands(report: Report) -> list[str]:
    """Return at most `MOST` lines; the last one counts what has none of its own."""
    found = [_annotation(reason) for reason in fold(report.cells, FAILING)]
    if not report.finished:
        planned = "an unknown number" if report.planned is None else report.planned
        ran = count(len(report.cells), "cell")
        found.insert(0, f"::error title=precision matrix::not finished: {ran} of {planned} ran")
    if len(found) <= MOST:
        return found
    more = len(found) - MOST + 1
    return [
        *found[: MOST - 1],
        f"::error title=precision matrix::{count(more, 'more reason')} to fail: see report.html",
    ]


def _annotation(reason: Reason) -> str:
    first = reason.cells[0]
    file = _property(first.test.partition("::")[0])
    times = f"{len(reason.cells)}x " if len(reason.cells) > 1 else ""
    title = _property(f"{times}{first.test.rpartition('::')[2]}")
    text = _escaped(f"{reason.text or 'no reason given'}\n{reason.where}")
    return f"::error file={file},line={first.line + 1},title={title}::{text}"


def _escaped(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _escaped(text).replace(":", "%3A").replace(",", "%2C")
