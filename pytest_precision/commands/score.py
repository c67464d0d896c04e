"""Run a script that scores tokens, and store what it shows in a folder.

The script calls show_scores of pytest_precision.rollout; two such folders are for `compare`.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pytest_precision._interrupts import uncollected
from pytest_precision._visible import visible
from pytest_precision.commands import add_command
from pytest_precision.commands.record import expect_script
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.ranks.code.python_path import without_own_entry


def add_to(commands: Any) -> None:
    """Add the command `score` and its options to the command line's parser."""
    parser = add_command(
        commands,
        "score",
        run,
        "record the log-probabilities and weights of a script that scores",
        __doc__,
        "%(prog)s --out DIR -- score.py [ARGUMENT ...]",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        required=True,
        help="a new or empty folder, the same for all ranks",
    )


def run(args: argparse.Namespace) -> int:
    """Run the script and record its scores; return the exit status.

    Raises:
        Exception: whatever the script raises.
    """
    expect_script(args)
    file, *arguments = args.script
    if args.out.exists() and any(args.out.iterdir()):
        got = f"--out={args.out}"
        args.parser.error(expected_but_got("a new or empty folder", got, "name another folder"))
    with uncollected():
        from pytest_precision.recorders.scripts.script_file import run_file
        from pytest_precision.rollout.score_recording import recording_scores
    folder = args.out.absolute()  # the script may change the folder
    try:
        with without_own_entry(), recording_scores(folder, Path(file), arguments):
            run_file(Path(file), arguments)
    except RecordingError as error:
        args.parser.error(visible(str(error)))
    return 0
