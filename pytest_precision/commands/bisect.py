"""Find the first commit between two in which a script computes something else.

Exit status 0 if there is one, 2 if it cannot be found.
"""

from __future__ import annotations

import argparse
import re
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pytest_precision.commands.against import Against
from pytest_precision.commands.output import say
from pytest_precision.errors import RecordingError, RevisionError, expected_but_got
from pytest_precision.revisions.work_tree import commit_of, git

if TYPE_CHECKING:
    from pytest_precision.parity.verdict import Verdict

_FIRST_BAD = re.compile(r"^# first bad commit: \[(\w+)\]", re.MULTILINE)

_POSSIBLE = re.compile(r"^# possible first bad commit: \[(\w+)\]", re.MULTILINE)

_COMMIT = "first commit with other numbers: %h %an, %as: %s"
"""What git prints of the commit that was found."""


def add_to(commands: Any) -> None:
    """Add the command to a parser."""
    parser = commands.add_parser(
        "bisect",
        help="find the commit that changed what a script computes",
        usage="%(prog)s GOOD BAD [OPTION ...] -- train.py [ARGUMENT ...]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("good", metavar="GOOD", help="commit whose numbers are right")
    parser.add_argument("bad", metavar="BAD", help="later commit whose numbers are others")
    Against.add_options(parser)
    parser.set_defaults(run=lambda given: Against(given).run(_found), parser=parser)


def _found(against: Against) -> int:
    """Bisect, print the commit and what it changed, and return the exit status."""
    given, sides = against.given, against.sides
    if sides.peers.world_size > 1:
        raise RevisionError(
            expected_but_got("one process", f"{sides.peers.world_size} ranks", "leave torchrun out")
        )
    good, bad = (commit_of(sides.repository, name) for name in (given.good, given.bad))
    with sides.at(good) as first:
        sides.record(first, good)
    if _agrees(against, bad, good):
        raise RevisionError(
            expected_but_got(f"other numbers at {given.bad} than at {given.good}", "the same")
        )
    guilty = _bisected(against, good, bad)
    say(git(sides.repository, "log", "-1", f"--format={_COMMIT}", guilty))
    against.show(_compared(against, guilty, good))
    return 0


def _bisected(against: Against, good: str, bad: str) -> str:
    """Return the first bad commit.

    Raises:
        RevisionError: the script fails in too many commits to tell which.
    """
    # git keeps the state of a bisection in the work tree in which it began, so the user's own
    # bisection is not touched.
    with against.sides.at(bad) as place:
        assert place.tree is not None
        git(place.tree, "bisect", "start", "--no-checkout", bad, good)
        while not (found := _FIRST_BAD.search(log := git(place.tree, "bisect", "log"))):
            commit = git(place.tree, "rev-parse", "BISECT_HEAD")
            with suppress(RevisionError):  # it fails if only skipped commits are left
                git(place.tree, "bisect", _word(against, commit, good))
            _expect_more(git(place.tree, "bisect", "log"), log)
        return found[1]


def _expect_more(log: str, before: str) -> None:
    """Refuse a bisection that cannot go on.

    Raises:
        RevisionError: with the commits of which one is the first, if git says that it is one.
    """
    if possible := _POSSIBLE.findall(log):
        raise RevisionError(
            expected_but_got(
                "one first commit with other numbers",
                f"one of {', '.join(commit[:12] for commit in possible)}",
                "the script cannot be recorded in some of them; what it prints is above",
            )
        )
    if log == before:
        raise RevisionError(f"git bisect does not go on after:\n{log}")


def _word(against: Against, commit: str, good: str) -> str:
    """Return what git is told of a commit: it is good, bad, or cannot be tested."""
    try:
        return "good" if _agrees(against, commit, good) else "bad"
    except (RecordingError, RevisionError) as error:
        print(f"pytest_precision: {commit:.12} is skipped: {error}", file=sys.stderr)
        return "skip"


def _agrees(against: Against, commit: str, good: str) -> bool:
    """Record a commit and return whether it computes what the good one does."""
    with against.sides.at(commit) as side:
        against.sides.record(side, commit)
    return _compared(against, commit, good).outcome == "pass"


def _compared(against: Against, commit: str, good: str) -> Verdict:
    folder = against.sides.folder
    return against.compared(folder / commit, folder / good, commit[:12], good[:12])
