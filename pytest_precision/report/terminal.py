"""Write the terminal summary: tables of results, what failures share, reasons and counts."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pytest

from pytest_precision._visible import visible
from pytest_precision.options.settings import BARE
from pytest_precision.report.cell_result import CellResult
from pytest_precision.report.collect import Results
from pytest_precision.report.grid import Line, by_test, fixed, grid
from pytest_precision.report.reasons import Reason, fold, not_compared, noticed, rerun, unread_axes
from pytest_precision.report.sharing import explain
from pytest_precision.report.status import FAILING, IN_PART, STATUSES, count, duration

TITLE = "precision matrix"

MAX_REASONS = 20
"""Most reasons under one heading that are shown without -v."""

MAX_LINES = 200
"""If all grids together have more lines, a test whose cells all pass gets one line."""


def write_summary(
    terminal: pytest.TerminalReporter,
    results: Results,
    seconds: float,
    problems: Iterable[str] = (),
    lines: Iterable[str] = (),
    *,
    bare: bool = False,
) -> None:
    """Write the report's terminal section: nothing if no test ran, only failures with `-q`.

    Args:
        terminal: pytest's terminal reporter.
        results: results of the session.
        seconds: duration of the session.
        problems: why parts of the report could not be written.
        lines: what reporters say.
        bare: whether its cells were bare, which is said also with `-q`.
    """
    cells = sorted(results.cells.values(), key=lambda cell: cell.position)
    section = _Section(terminal)
    if cells and terminal.verbosity >= 0:
        terminal.write_sep("=", TITLE)
        section.grids(cells)
        section.legend(cells)
        section.others(cells)
        section.failures(cells)
        section.counts(cells, seconds)
    elif any(cell.failing for cell in cells):
        terminal.write_sep("=", TITLE)
        section.failures(cells)
    if cells and bare:
        terminal.write_line(f"precision: judgements are off ({BARE})", yellow=True)
    for line in lines if terminal.verbosity >= 0 else ():
        terminal.write_line(f"precision: {visible(line)}")
    for problem in problems:
        terminal.write_line(f"precision: {visible(problem)}", red=True)


class _Section:
    """Prints the section on precision tests in pytest's terminal summary, part by part."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self.terminal = terminal
        self.width = terminal.config.get_terminal_writer().fullwidth

    def grids(self, cells: Sequence[CellResult]) -> None:
        """Print one table (grid) of results per test, or one line if no axis varies."""
        tests = {of_test[0].test: of_test for of_test in by_test(cells)}
        grids = {test: grid(of_test, self.width) for test, of_test in tests.items()}
        long = sum(map(len, grids.values())) > MAX_LINES
        for test, lines in grids.items():
            of_test = tests[test]
            if long and all(cell.passing for cell in of_test):
                self.line([(f"{test}: {count(len(of_test), 'cell')}, all passed", "")])
            elif len(lines) == 1:
                self.line([(f"{test}  ", ""), *lines[0][-1:]])
                self.fixed(of_test)
            else:
                self.line([(test, "")])
                self.fixed(of_test)
                for line in lines:
                    self.line(line)
            self.terminal.write_line("")

    def fixed(self, cells: Sequence[CellResult]) -> None:
        """Print the axes that have the same value in all cells (parametrizations) of a test."""
        text = fixed(cells)
        if text:
            self.paragraph(f"with {text}", "  ", "  ")

    def legend(self, cells: Sequence[CellResult]) -> None:
        """Print what `partial` means, what was not compared and why, and what was noticed."""
        if any(cell.status == "partial" for cell in cells):
            mark = STATUSES["partial"].mark
            self.paragraph(f"{mark} {IN_PART}", "", "  ")
        notes = not_compared(cells)
        shown = notes if self.terminal.verbosity > 0 else notes[:MAX_REASONS]
        for text, number in shown:
            where = count(number, "cell") if number < len(cells) else "all cells"
            self.paragraph(f"not compared in {where}: {text}", "", "  ")
        if len(shown) < len(notes):
            self.terminal.write_line(f"  and {len(notes) - len(shown)} more; -v shows all")
        noted = noticed(cells)
        for text, number in noted:
            self.paragraph(f"noticed in {count(number, 'cell')}: {text}", "", "  ")
        if notes or noted:
            self.terminal.write_line("")

    def others(self, cells: Sequence[CellResult]) -> None:
        """Print the reasons of tests that did not fail, such as why they were skipped."""
        reasons = fold(cells, [name for name in STATUSES if name not in FAILING])
        shown_reasons = [reason for reason in reasons if reason.text]
        if shown_reasons:
            self.reasons(shown_reasons)
            self.terminal.write_line("")

    def failures(self, cells: Sequence[CellResult]) -> None:
        """Print the failing tests, grouped by shared axis values and then by reason."""
        failing = [cell for cell in cells if cell.failing]
        if not failing:
            return
        passing = [cell for cell in cells if cell.passing]
        head = f"{len(failing)} of {count(len(cells), 'cell')} failed"
        self.terminal.write_line(head if passing else f"{head}, none passed", red=True, bold=True)
        for part in explain(failing, passing):
            statement = part.statement(failing)
            if statement:
                self.paragraph(statement, "", "  ", bold=True)
            self.reasons(fold(part.cells, FAILING))
        self.terminal.write_line("")

    def reasons(self, reasons: Sequence[Reason]) -> None:
        """Print each reason with its mark, number of tests and first test (all tests with -v)."""
        verbose = self.terminal.verbosity > 0
        for reason in reasons if verbose else reasons[:MAX_REASONS]:
            status = STATUSES[reason.status]
            head, *culprit, where = reason.lines
            self.paragraph(
                f"{status.mark} {reason.times}{head}", "  ", "    ", **{status.colour: True}
            )
            for line in culprit:
                self.paragraph(line, "    ", "      ")
            for nodeid in [cell.nodeid for cell in reason.cells] if verbose else [where]:
                self.terminal.write_line(visible(f"    {nodeid}"))
        if len(reasons) > MAX_REASONS and not verbose:
            self.terminal.write_line(f"  and {len(reasons) - MAX_REASONS} more; -v shows all")

    def counts(self, cells: Sequence[CellResult], seconds: float) -> None:
        """Print the number of tests per status, the session's time, and notes."""
        numbers = Counter(cell.status for cell in cells)
        line: Line = [(f"{count(len(cells), 'cell')} in {duration(seconds)}: ", "")]
        for name in reversed(STATUSES):
            if numbers[name]:
                status = STATUSES[name]
                line += [(f"{numbers[name]} {status.word} ({status.mark})", name), (", ", "")]
        self.line(line[:-1])
        caught = sum(cell.caught for cell in cells)
        if caught:
            mark = STATUSES["xfail"].mark
            text = f"pytest counts {caught} of the {mark} as passed: their tests expected a failure"
            self.terminal.write_line(text)
        for note in (*rerun(cells), *unread_axes(cells)):
            self.paragraph(note, "", "  ")
        if self.terminal.verbosity > 0:
            self.timing(cells)
            self.noise(cells)
            self.unexercised(cells)
            self.unjudged(cells)

    def timing(self, cells: Sequence[CellResult]) -> None:
        """Print how the tests' time was spent; times of xdist workers overlap."""
        seconds = sum(cell.seconds for cell in cells)
        entries = [check.entry for cell in cells for check in cell.checks]
        timings = [entry.get("timing", {}) for entry in entries]
        spent = {
            f"{side}s": sum(timing.get(side, 0.0) for timing in timings)
            for side in ("candidate", "reference")
        }
        checks = sum(entry["seconds"] for entry in entries if "timing" in entry)
        spent["comparison"] = checks - sum(spent.values())
        spent["the rest of the tests"] = max(0.0, seconds - checks)
        words = ", ".join(
            f"{name} {duration(spent_seconds)}" for name, spent_seconds in spent.items()
        )
        self.paragraph(f"time of the tests: {words}", "", "  ")

    def noise(self, cells: Sequence[CellResult]) -> None:
        """Print how far rounding alone moved each kind of tensor, where `noise()` measured it."""
        errors_by_test = {}
        for of_test in by_test(cells):
            largest: dict[str, float] = {}
            for check in (check for cell in of_test for check in cell.checks):
                for kind, measured in check.entry.get("noise", {}).items():
                    largest[kind] = max(largest.get(kind, 0.0), measured["rel_l2"])
            errors_by_test[of_test[0].test] = [f"{kind} {e:.2g}" for kind, e in largest.items()]
        self.of_tests("noise of the reference (relative L2 error) in", errors_by_test)

    def unexercised(self, cells: Sequence[CellResult]) -> None:
        """Print which features, such as clipping, no run of a test exercised."""
        features_by_test = {}
        for of_test in by_test(cells):
            entries = [check.entry for cell in of_test for check in cell.checks]
            never = [set(entry["unexercised"]) for entry in entries if "unexercised" in entry]
            features_by_test[of_test[0].test] = set.intersection(*never) if never else set()
        self.of_tests("never exercised in", features_by_test)

    def unjudged(self, cells: Sequence[CellResult]) -> None:
        """Print why a test's weight updates were not checked against the optimizer's formula."""
        reasons_by_test = {
            of_test[0].test: {
                reason
                for cell in of_test
                for check in cell.checks
                for reason in unjudged(check.entry)
            }
            for of_test in by_test(cells)
        }
        self.of_tests("updates not judged by a rule in", reasons_by_test)

    def of_tests(self, head: str, notes_by_test: Mapping[str, Collection[str]]) -> None:
        """Print each note once, in one line with the names of all tests that have it."""
        tests: dict[tuple[str, ...], list[str]] = {}
        for test, words in notes_by_test.items():
            tests.setdefault(tuple(sorted(words)), []).append(test)
        for words, names in tests.items():
            if words:
                self.paragraph(f"{head} {', '.join(names)}: {'; '.join(words)}", "", "  ")

    def line(self, line: Line) -> None:
        """Print one line of coloured pieces of text."""
        for text, name in _joined_pieces(line):
            self.terminal.write(visible(text), **({STATUSES[name].colour: True} if name else {}))
        self.terminal.write_line("")

    def paragraph(self, text: str, first: str, others: str, **markup: bool) -> None:
        """Print text wrapped at blanks only, so that ids can be copied whole."""
        for line in textwrap.wrap(
            text,
            self.width,
            initial_indent=first,
            subsequent_indent=others,
            break_long_words=False,
            break_on_hyphens=False,
        ):
            self.terminal.write_line(visible(line), **markup)


def _joined_pieces(line: Iterable[tuple[str, str]]) -> Line:
    """Join neighbouring pieces of text of the same colour; blanks join a piece of any colour."""
    joined_pieces: Line = []
    for text, name in line:
        if joined_pieces and (name == joined_pieces[-1][1] or not text.strip()):
            joined_pieces[-1] = (joined_pieces[-1][0] + text, joined_pieces[-1][1])
        else:
            joined_pieces.append((text, name))
    return joined_pieces


def unjudged(entry: Mapping[str, Any]) -> set[str]:
    """Return why a check's weight updates were not compared with the optimizer's formula."""
    sides = entry.get("oracle", {}).values()
    reasons = (
        why
        for side in sides
        for why in (
            side.get("silent"),
            *side.get("unjudged", {}).values(),
            *(f"{kind}: {reason}" for kind, reason in side.get("off", {}).items()),
        )
    )
    return set(filter(None, reasons))
