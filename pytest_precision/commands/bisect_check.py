"""Bisect a check: whether commits compute what a matrix test of this folder computes here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_precision.commands.against import Against
from pytest_precision.errors import ReportError, RevisionError, expected_but_got
from pytest_precision.report.read import read_report

_OF_SCRIPTS = ("link", "steps", "values", "see", "te", "criterion", "verbose", "brief")
"""Options that only recordings of a script have."""


class ChecksOfCommits:
    """The sides of a matrix test as it is here, each compared with itself in commits.

    Args:
        against: has the node id of the test, and pytest's further arguments.

    Raises:
        RevisionError: an option is for scripts alone.
    """

    def __init__(self, against: Against) -> None:
        self._against = against
        self._good = ""
        given = against.given
        for name in _OF_SCRIPTS:
            if getattr(given, name) != given.parser.get_default(name):
                what = f"no --{name}, which is for scripts,"
                raise RevisionError(expected_but_got(what, "it with a test", "leave it out"))

    def expect_ends(self, good: str, bad: str) -> None:
        """Refuse a bad commit with other numbers than the files here, and a good one with the same.

        Raises:
            RevisionError: see above, or the test cannot be compared with one of them.
        """
        given = self._against.given
        if self.is_good(bad):
            wanted = f"the test to compute here what it does at {given.bad}"
            raise RevisionError(expected_but_got(wanted, "other numbers", "check that commit out"))
        if not self.is_good(good):
            wanted = f"other numbers here than at {given.good}"
            raise RevisionError(expected_but_got(wanted, "the same"))

    def is_good(self, commit: str) -> bool:
        """Return whether the test computes something else at a commit than here.

        Raises:
            RevisionError: the test cannot be compared with that commit.
        """
        print(f"pytest_precision: {commit:.12}", file=sys.stderr, flush=True)
        folder = self._against.sides.folder / commit
        done = self._pytest(commit, folder, "--precision-lines=off", "--quiet", quiet=True)
        try:
            cells = read_report(folder)["cells"]
        except ReportError:
            cells = []
        failed = f"status {done.returncode} of pytest"
        if not cells or any("then" not in cell for cell in cells):
            raise RevisionError(
                expected_but_got(
                    f"a check that can be compared with {commit:.12}",
                    next((cell["reason"] for cell in cells if "then" not in cell), failed),
                    f"try pytest --precision-matrix --precision-against={commit:.12}",
                )
            )
        good = any(cell["then"]["moved"] for cell in cells)
        if good:
            self._good = commit
        return good

    def show(self) -> None:
        """Print how the sides moved since the last commit with other numbers than here."""
        self._pytest(self._good, self._against.given.report, quiet=False)

    def _pytest(
        self, commit: str, report: Path | None, *options: str, quiet: bool
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the test against a commit; what it prints is lost, or goes to standard output."""
        words = [sys.executable, "-m", "pytest", *self._against.given.script]
        words += ["--precision-matrix", f"--precision-against={commit}"]
        words += [*options, *([f"--precision-report={report}"] if report else [])]
        return subprocess.run(words, stdout=subprocess.DEVNULL if quiet else None)
