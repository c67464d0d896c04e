"""Show what git says of a line that two revisions have otherwise."""

from __future__ import annotations

import re
from pathlib import Path

from pytest_precision._git import git
from pytest_precision.errors import RevisionError
from pytest_precision.revisions.installation import Installation

_HEAD = re.compile(r"@@ -\S+ \+(?P<first>\d+)(?:,(?P<lines>\d+))? @@")

MOST_HUNK_LINES = 60
"""Lines of a hunk that are shown: a new file is a hunk, too."""

DIFF_SECONDS = 10.0
"""Time that git has to compare one file."""


def hunk_of(
    repository: Path, candidate: Installation, reference: Installation, file: Path, line: int
) -> str:
    """Return the part of `git diff` that has a line of the candidate's; empty if none has.

    Args:
        repository: its root.
        candidate: a commit, or the working tree.
        reference: a commit.
        file: of the candidate, absolute.
        line: from 1.
    """
    commits = [side.places[1].name for side in (reference, candidate) if side.places]
    if not file.is_relative_to(repository):
        return ""
    words = ("diff", "--no-ext-diff", "--no-textconv", "--no-color", *commits, "--")
    try:
        text = git(repository, *words, str(file.relative_to(repository)), seconds=DIFF_SECONDS)
    except RevisionError:
        return ""
    for hunk in re.split(r"^(?=@@ )", text, flags=re.MULTILINE)[1:]:
        head = _HEAD.match(hunk)
        if head and 0 <= line - int(head["first"]) < int(head["lines"] or 1):
            return "\n".join(hunk.splitlines()[:MOST_HUNK_LINES])
    return ""
