"""Find the first commit in which a script, or a matrix test, computes other numbers.

For a script, this is the first commit whose numbers differ from those of GOOD.

A test is named by its node id, such as test_it.py::test_it[fp32]. It runs from the files that are
here now, which must compute what BAD computes; its layouts come from each commit. For a test, the
command finds the first commit since which the numbers are those of BAD.

Exit status 0 if the commit was found, 2 if not.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Literal, Protocol

from pytest_precision._git import git
from pytest_precision._progress import in_seconds
from pytest_precision.commands import add_command, note, say
from pytest_precision.commands.against import Against
from pytest_precision.errors import RecordingError, ReportError, RevisionError, expected_but_got
from pytest_precision.report.read import read_report
from pytest_precision.revisions.run_servers import Seat
from pytest_precision.revisions.work_tree import commit_of

_COMMIT = "first commit with other numbers: %h %an, %as: %s"
"""What git prints of the commit that was found."""


def add_to(commands: Any) -> None:
    """Add the command `bisect` and its options to the command line's parser."""
    parser = add_command(
        commands,
        "bisect",
        lambda args: Against(args, checks=True).run(_bisect),
        "find the commit that changed what a script or a test computes",
        __doc__,
        "%(prog)s GOOD BAD [OPTION ...] -- train.py|NODE_ID [ARGUMENT ...]",
    )
    parser.add_argument("good", metavar="GOOD", help="commit whose numbers are right")
    parser.add_argument("bad", metavar="BAD", help="later commit with other numbers")
    Against.add_options(parser)


def _bisect(against: Against) -> int:
    """Bisect; print the commit found and how it changed the results, and return the exit status."""
    args = against.args
    sides = against.sides
    if sides.peers.world_size > 1:
        raise RevisionError(
            expected_but_got("one process", f"{sides.peers.world_size} ranks", "leave torchrun out")
        )
    good, bad = (commit_of(sides.repository, name) for name in (args.good, args.bad))
    commits: RecordedCommits | ChecksOfCommits
    commits = ChecksOfCommits(against) if against.of_check else RecordedCommits(against)
    commits.expect_ends(good, bad)
    show = (lambda text: None) if args.quiet else note
    guilty = bisected(sides.repository, commits, good, bad, show)
    say(git(sides.repository, "log", "-1", f"--format={_COMMIT}", guilty))
    commits.show()
    return 0


class JudgedCommits(Protocol):
    """What tells good commits from bad ones."""

    def is_good(self, commit: str) -> bool:
        """Return whether a commit is good.

        Raises:
            RevisionError: it cannot be judged.
        """


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
        self._record(good, "reference")
        if self.is_good(bad):
            args = self._against.args
            raise RevisionError(
                expected_but_got(
                    f"other numbers at {args.bad} than at {args.good}",
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

    def _record(self, commit: str, seat: Seat = "candidate") -> None:
        with self._against.sides.at(commit) as side:
            self._against.sides.record(side, commit, seat=seat)


def bisected(
    repository: Path,
    commits: JudgedCommits,
    good: str,
    bad: str,
    show: Callable[[str], None] = note,
) -> str:
    """Bisect, and return the first bad commit: of those found bad, the last one tested.

    git lists the commits in between. `git bisect` would write refs, for which it runs a hook of the
    user's whatever its configuration says.

    Args:
        repository: root of the repository.
        commits: judges them.
        good: full name of a good commit.
        bad: full name of a bad one.
        show: is called with how far this has come, before each commit.

    Raises:
        RevisionError: too many commits cannot be judged to tell which it is, or the numbers changed
            before the good commit.
    """
    found_good, skipped = [good], set()
    for fork in _forks(repository, good, bad):
        if fork == bad or _word(commits, fork) == "bad":
            raise RevisionError(
                expected_but_got(
                    f"the numbers of GOOD where it parted from BAD, at {fork:.12}",
                    "others",
                    "they changed on the way to GOOD; give that commit as BAD or GOOD",
                )
            )
    began, judged = monotonic(), 0
    while between := untested(repository, found_good, bad):
        show(_ahead(found_good[-1], bad, len(between), (monotonic() - began) / max(1, judged)))
        judged += 1
        commit = next((commit for commit in between if commit not in skipped), None)
        if commit is None:
            several = ", ".join(commit[:12] for commit in (bad, *between))
            raise RevisionError(
                expected_but_got(
                    "one commit as the first with other numbers",
                    f"several that may be it, {several}",
                    "some of them were skipped, for the reasons printed above",
                )
            )
        word = _word(commits, commit)
        if word == "good":
            found_good.append(commit)
        elif word == "bad":
            bad = commit
        else:
            skipped.add(commit)
    return bad


def _ahead(good: str, bad: str, between: int, seconds: float) -> str:
    """Say between which commits the one looked for is, and how long it will take to find it.

    Args:
        good: the last commit found good.
        bad: the last one found bad.
        between: number of commits that are neither.
        seconds: that one commit has taken; about 0 before the first.
    """
    runs = between.bit_length()
    times = f", about {in_seconds(runs * seconds)}" if seconds >= 1 else ""
    commits = f"{between} commit{'s' * (between > 1)}"
    return f"{commits} between {good:.12} and {bad:.12}: {runs} to run at most{times}"


def _forks(repository: Path, good: str, bad: str) -> list[str]:
    """Return the commits at which two histories parted; none where one is a part of the other."""
    try:
        bases = git(repository, "merge-base", "--all", good, bad).split()
    except RevisionError:  # they have none in common
        return []
    return [fork for fork in bases if fork != good]


def untested(repository: Path, good: Sequence[str], bad: str) -> list[str]:
    """Return the commits before `bad` and after the good ones, those in the middle first."""
    without = [f"^{commit}" for commit in good]
    lines = git(repository, "rev-list", "--bisect-all", bad, *without).splitlines()
    return [line.split()[0] for line in lines if not line.startswith(bad)]


def _word(commits: JudgedCommits, commit: str) -> Literal["good", "bad", "skipped"]:
    """Judge a commit; return `skipped` if it cannot be judged, after the reason is printed."""
    try:
        return "good" if commits.is_good(commit) else "bad"
    except (RecordingError, RevisionError) as error:
        print(f"pytest_precision: {commit:.12} is skipped: {error}", file=sys.stderr)
        return "skipped"


_OF_SCRIPTS = (
    "link",
    "quiet",
    "steps",
    "values",
    "see",
    "te",
    "criterion",
    "force",
    "verbose",
    "brief",
)
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
        args = against.args
        for name in _OF_SCRIPTS:
            if getattr(args, name) != args.parser.get_default(name):
                expected = f"no --{name}, which is for scripts,"
                raise RevisionError(expected_but_got(expected, "it with a test", "leave it out"))

    def expect_ends(self, good: str, bad: str) -> None:
        """Raise RevisionError unless the test computes the same here as at `bad`, not as at `good`.

        Raises:
            RevisionError: it computes otherwise, or the test cannot be compared with one of them.
        """
        args = self._against.args
        if self.is_good(bad):
            expected = f"the test to compute here what it does at {args.bad}"
            raise RevisionError(
                expected_but_got(expected, "other numbers", "check that commit out")
            )
        if not self.is_good(good):
            expected = f"other numbers here than at {args.good}"
            raise RevisionError(expected_but_got(expected, "the same", "give an earlier GOOD"))

    def is_good(self, commit: str) -> bool:
        """Return whether the test computes other numbers in a commit than in the working tree.

        Raises:
            RevisionError: the test cannot be compared with that commit.
        """
        print(f"pytest_precision: {commit:.12}", file=sys.stderr, flush=True)
        folder = self._against.sides.folder / commit
        done = self._pytest(commit, folder, "-oprecision_lines=off", "--quiet", quiet=True)
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
        self._pytest(self._good, self._against.args.report, quiet=False)

    def _pytest(
        self, commit: str, report: Path | None, *options: str, quiet: bool
    ) -> subprocess.CompletedProcess[bytes]:
        """Run the test against a commit; print its output, or drop it if `quiet`."""
        words = self._against.sides.here().words(Path.cwd(), "pytest:main")
        words += [*self._against.args.script, *options, "--precision-matrix"]
        words += [f"--precision-against={commit}"]
        words += [f"--precision-report={report}"] if report else []
        return subprocess.run(words, stdout=subprocess.DEVNULL if quiet else None)
