"""Find the first commit in which a script, or a matrix test, computes other numbers.

For a script, this is the first commit whose numbers differ from those of GOOD.

A test is named by its node id, such as test_it.py::test_it[fp32]. It runs from the files that are
here now, which must compute what BAD computes; its layouts come from each commit. For a test, the
command finds the first commit since which the numbers are those of BAD.

Exit status 0 if the commit was found, 2 if not.
"""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pytest_precision._git import git
from pytest_precision.commands import add_command, say
from pytest_precision.commands.against import Against
from pytest_precision.errors import RecordingError, ReportError, RevisionError, expected_but_got
from pytest_precision.report.read import read_report
from pytest_precision.revisions.work_tree import commit_of

_FIRST_BAD = re.compile(r"^# first bad commit: \[(\w+)\]", re.MULTILINE)

_POSSIBLE = re.compile(r"^# possible first bad commit: \[(\w+)\]", re.MULTILINE)

_COMMIT = "first commit with other numbers: %h %an, %as: %s"
"""What git prints of the commit that was found."""


def add_to(commands: Any) -> None:
    """Add the command `bisect` and its options to the command line's parser."""
    parser = add_command(
        commands,
        "bisect",
        lambda given: Against(given, checks=True).run(_found),
        "find the commit that changed what a script or a test computes",
        __doc__,
        "%(prog)s GOOD BAD [OPTION ...] -- train.py|NODE_ID [ARGUMENT ...]",
    )
    parser.add_argument("good", metavar="GOOD", help="commit whose numbers are right")
    parser.add_argument("bad", metavar="BAD", help="later commit with other numbers")
    Against.add_options(parser)


def _found(against: Against) -> int:
    """Bisect; print the commit found and how it changed the results, and return the exit status."""
    given = against.given
    sides = against.sides
    if sides.peers.world_size > 1:
        raise RevisionError(
            expected_but_got("one process", f"{sides.peers.world_size} ranks", "leave torchrun out")
        )
    good, bad = (commit_of(sides.repository, name) for name in (given.good, given.bad))
    commits: RecordedCommits | ChecksOfCommits
    commits = ChecksOfCommits(against) if against.of_check else RecordedCommits(against)
    commits.expect_ends(good, bad)
    guilty = _bisected(against, commits, good, bad)
    say(git(sides.repository, "log", "-1", f"--format={_COMMIT}", guilty))
    commits.show()
    return 0


class RecordedCommits:
    """Judges commits: good if a script computes the same there as in the commit known to be good.

    Args:
        against: has the script.
    """

    def __init__(self, against: Against) -> None:
        self._against = against
        self._good = ""
        self._bad = ""

    def expect_ends(self, good: str, bad: str) -> None:
        """Record the good commit; raise RevisionError if the bad one computes the same numbers.

        Raises:
            RevisionError: the two compute the same, or the script fails in one of them.
        """
        self._good = good
        self._record(good)
        if self.is_good(bad):
            given = self._against.given
            raise RevisionError(
                expected_but_got(
                    f"other numbers at {given.bad} than at {given.good}",
                    "the same",
                    "give an earlier GOOD or a later BAD",
                )
            )

    def is_good(self, commit: str) -> bool:
        """Record a commit and return whether it computes the same as the good one."""
        self._record(commit)
        folder = self._against.sides.folder
        names = (commit[:12], self._good[:12])
        verdict = self._against.compared(folder / commit, folder / self._good, *names)
        good = verdict.outcome == "pass"
        if not good:
            self._bad = commit
        return good

    def show(self) -> None:
        """Print how the last commit that was found bad differs from the good one."""
        sides = self._against.sides
        with sides.at(self._bad) as ours, sides.at(self._good) as theirs:
            self._against.judge(ours, theirs, self._bad, self._good)

    def _record(self, commit: str) -> None:
        with self._against.sides.at(commit) as side:
            self._against.sides.record(side, commit)


def _bisected(
    against: Against, commits: RecordedCommits | ChecksOfCommits, good: str, bad: str
) -> str:
    """Run `git bisect`, and return the first bad commit: of those found bad, the last one tested.

    Raises:
        RevisionError: too many commits cannot be judged to tell which it is.
    """
    # git keeps the state of a bisection in the work tree in which it began, so the user's own
    # bisection is not touched.
    with against.sides.at(bad) as place:
        assert place.places is not None
        _, tree = place.places
        git(tree, "bisect", "start", "--no-checkout", bad, good)
        while not (found := _FIRST_BAD.search(log := git(tree, "bisect", "log"))):
            commit = git(tree, "rev-parse", "BISECT_HEAD")
            with suppress(RevisionError):  # it fails if only skipped commits are left
                git(tree, "bisect", _word(commits, commit))
            _expect_more(git(tree, "bisect", "log"), log)
        return found[1]


def _expect_more(log: str, before: str) -> None:
    """Raise RevisionError if git's log says that git cannot continue the bisection.

    Raises:
        RevisionError: with the commits of which one is the first, if git says that it is one.
    """
    if possible := _POSSIBLE.findall(log):
        raise RevisionError(
            expected_but_got(
                "one commit as the first with other numbers",
                f"several that may be it, {', '.join(commit[:12] for commit in possible)}",
                "some of them were skipped, for the reasons printed above",
            )
        )
    if log == before:
        raise RevisionError(f"git bisect does not go on after:\n{log}")


def _word(commits: RecordedCommits | ChecksOfCommits, commit: str) -> str:
    """Return the word that `git bisect` has for a commit's result: good, bad or skip."""
    try:
        return "good" if commits.is_good(commit) else "bad"
    except (RecordingError, RevisionError) as error:
        print(f"pytest_precision: {commit:.12} is skipped: {error}", file=sys.stderr)
        return "skip"


_OF_SCRIPTS = ("link", "steps", "values", "see", "te", "criterion", "force", "verbose", "brief")
"""Options that only recordings of a script have."""


class ChecksOfCommits:
    """Judges commits by a test: bad if its numbers there are the working tree's, else good.

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
        """Raise RevisionError unless the test computes the same here as at `bad`, not as at `good`.

        Raises:
            RevisionError: it computes otherwise, or the test cannot be compared with one of them.
        """
        given = self._against.given
        if self.is_good(bad):
            wanted = f"the test to compute here what it does at {given.bad}"
            raise RevisionError(expected_but_got(wanted, "other numbers", "check that commit out"))
        if not self.is_good(good):
            wanted = f"other numbers here than at {given.good}"
            raise RevisionError(expected_but_got(wanted, "the same", "give an earlier GOOD"))

    def is_good(self, commit: str) -> bool:
        """Return whether the test computes other numbers in a commit than in the working tree.

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
        """Print how the test's numbers differ between the last good commit and the working tree."""
        self._pytest(self._good, self._against.given.report, quiet=False)

    def _pytest(
        self, commit: str, report: Path | None, *options: str, quiet: bool
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the test against a commit; print its output, or drop it if `quiet`."""
        words = self._against.sides.here().words(Path.cwd(), "pytest:main")
        words += [*self._against.given.script, *options, "--precision-matrix"]
        words += [f"--precision-against={commit}"]
        words += [f"--precision-report={report}"] if report else []
        return subprocess.run(words, stdout=subprocess.DEVNULL if quiet else None)
