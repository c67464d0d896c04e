"""Counts: what a script asks of a report, as lines NAME=VALUE, which GitHub reads as outputs."""

from __future__ import annotations

from pytest_precision.report.read import Report


def counts(report: Report) -> str:
    """Return how the cells ended, how many there are, and how many of them failed."""
    failed = sum(cell.failing for cell in report.cells)
    return f"outcome={_outcome(report, failed)}\ncells={len(report.cells)}\nfailed={failed}"


def _outcome(report: Report, failed: int) -> str:
    if failed:
        return "failed"
    return "passed" if report.finished and report.cells else "unfinished"
