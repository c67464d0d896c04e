"""Run a script that scores tokens, and store what it shows in a folder.

The script calls show_scores of pytest_precision.rollout; two such folders are for `compare`.
Exit status 0 if they are recorded, 2 if they cannot be, else that of the script.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from pytest_precision._interrupts import uncollected
from pytest_precision._progress import shown
from pytest_precision._visible import visible
from pytest_precision.commands import add_command, add_quiet, is_first_rank
from pytest_precision.commands._out import (
    add_out,
    expect_empty,
    report_unfinished,
    say_recorded,
    size_of_first_rank,
)
from pytest_precision.commands.record import expect_script
from pytest_precision.errors import RecordingError
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
    add_out(parser)
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    """Run the script and record its scores; return the exit status.

    Raises:
        Exception: whatever the script raises.
    """
    expect_script(args)
    speaks = is_first_rank() and not args.quiet
    file, *arguments = args.script
    if not int(os.environ.get("RANK") or 0):  # the one that writes, and may have begun to
        expect_empty(args)
    with uncollected():
        from pytest_precision.recorders.scripts.script_file import run_file
        from pytest_precision.rollout.score_recording import recording_scores
    folder = args.out.absolute()  # the script may change the folder
    try:
        with (
            without_own_entry(),
            shown(visible(file), unit="call", quiet=not speaks),
            recording_scores(folder, Path(file), arguments) as recorder,
        ):
            run_file(Path(file), arguments)
    except RecordingError as error:
        args.parser.error(visible(str(error)))
    except (Exception, KeyboardInterrupt):
        report_unfinished(folder, args.out)
        raise
    if speaks:
        say_recorded(args.out, size_of_first_rank(folder), file, recorder.calls, "call")
    return 0
