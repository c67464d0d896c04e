"""Shorten failure messages in the terminal, unless -v asks for all of them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.reasons import fold, text_of
from pytest_precision.report.status import FAILING, STATUSES

# What pytest's lines of a message begin with.
ERROR_MARK = "E"
ERROR_MARGIN = "E   "


def shorten(reporter: pytest.TerminalReporter, cells: Iterable[CellResult]) -> None:
    """Shorten each failure's text in the terminal; of equal failures show only the first.

    JUnit files and report.json hold every failure whole: they were written, or given it, before.

    Args:
        reporter: pytest's terminal reporter; with `-v` it shows everything.
        cells: all results.
    """
    if reporter.verbosity > 0:
        return
    firsts = _firsts(sorted(cells, key=lambda cell: cell.position))
    for report in reporter.getreports("failed"):
        first = firsts.get(report.nodeid)
        if first is not None and report.when == "call":
            nodeid, figures = first
            report.longrepr = f"like {nodeid.partition('::')[2]} (-v: whole){figures}"
        elif brief := getattr(report, "precision_brief", []):
            _show(report.longrepr, brief, reporter.config.get_terminal_writer().fullwidth)


def _show(longrepr: Any, brief: Sequence[str], width: int) -> None:
    """Replace a failure's message by a few lines, below the test's failing line of code.

    Args:
        longrepr: of pytest's long or short style; one of another style has no such place.
        brief: the lines.
        width: of the terminal.
    """
    entry = longrepr.reprtraceback.reprentries[-1]
    message = [line for line in entry.lines if line.startswith(ERROR_MARK)]
    if not message:
        return
    whole = (line for text in brief for line in _wrapped(text, width - len(ERROR_MARGIN)))
    entry.lines = [line for line in entry.lines if not line.startswith(ERROR_MARK)]
    entry.lines += [f"{ERROR_MARGIN}{line}" for line in whole]
    entry.reprfuncargs = None  # the title names the cell, and the lines what was checked


TO_COPY = ("Repeat with:", "Draw again with:", "To have this cell,", "python ")
"""How lines begin with what a reader copies, which is never wrapped."""


def _wrapped(text: str, width: int) -> list[str]:
    """Wrap a line of text to the terminal's width, but not a command that users may copy."""
    if len(text) <= width or text.strip().startswith(TO_COPY):
        return [text]
    indent = " " * (2 + len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text,
        width,
        drop_whitespace=True,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _firsts(cells: Iterable[CellResult]) -> dict[str, tuple[str, str]]:
    """Map each test that failed like an earlier one to that one, and to its own other figures."""
    alone = [cell for cell in cells if sum(STATUSES[c.status].failing for c in cell.checks) == 1]
    return {
        cell.nodeid: (reason.cells[0].nodeid, "" if text == reason.text else f", but {text}")
        for reason in fold(alone, FAILING)
        for cell, check in [*zip(reason.cells, reason.checks, strict=True)][1:]
        for text in [text_of(cell, check)]
    }
