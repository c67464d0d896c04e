"""Compare what a script computes here with what it computes in another commit or installation.

Exit status 0 if the two agree, 1 if not, 2 if they cannot be compared.
For several ranks: torchrun --nproc-per-node 2 -m pytest_precision diff HEAD~1 -- train.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_precision.commands import add_command, say
from pytest_precision.commands.against import Against
from pytest_precision.commands.compare import add_json
from pytest_precision.revisions.installation import Installation


def add_to(commands: Any) -> None:
    """Add the command `diff` and its options to the command line's parser."""
    parser = add_command(
        commands,
        "diff",
        lambda args: Against(args).run(_status),
        "compare a script with itself in another commit or installation",
        __doc__,
        "%(prog)s [REVISION] [--python PATH] [OPTION ...] -- train.py [ARGUMENT ...]",
    )
    parser.add_argument(
        "revision",
        metavar="REVISION",
        nargs="?",
        help="commit to compare with, such as main or HEAD~1 (default: HEAD, which shows what "
        "is not committed yet; with --python, the files as they are)",
    )
    parser.add_argument("--python", metavar="PATH", type=Path, help="interpreter to compare with")
    parser.add_argument(
        "--self",
        dest="repeats",
        action="store_true",
        help="first record this side twice, and go on only if it repeats",
    )
    Against.add_options(parser)
    add_json(parser)


def _status(against: Against) -> int:
    """Record the script here and at the other commit, compare, and return the exit status."""
    sides = against.sides
    own_side = against.sides.here()
    with _other_installation(against) as other_side:
        sides.folder_in(other_side)  # which may refuse, and nothing is recorded yet
        sides.record(own_side, "candidate")
        if against.args.repeats:
            sides.record(own_side, "again", seat="reference")
            itself = replace(own_side, name="itself, recorded again")
            if status := against.judge(own_side, itself, "candidate", "again"):
                return status
        sides.record(other_side, "reference", seat="reference")
        return against.judge(own_side, other_side, "candidate", "reference")


@contextmanager
def _other_installation(against: Against) -> Iterator[Installation]:
    """Yield the side that is compared with the working tree: a commit or another installation."""
    python = against.args.python
    revision = against.args.revision
    if python is not None:
        Installation(str(python), python).expect_able()
    if python is not None and revision is None:
        yield Installation(str(python), python)
    else:
        commit = "HEAD" if revision is None else revision
        with against.sides.at(commit, python) as other_side:
            if python is None and not against.sides.peers.rank and against.sides.is_here(commit):
                same = "is checked out here, and no tracked file differs from it"
                text = f"{other_side.name} {same}: both sides are the same code"
                if against.args.json:
                    print(text, file=sys.stderr, flush=True)
                else:
                    say(text)
            yield other_side
