"""The options of `record` that watch a script and record nothing, and what they do."""

from __future__ import annotations

import argparse
from pathlib import Path

from pytest_precision._interrupts import uncollected
from pytest_precision.commands import is_first_rank, note
from pytest_precision.commands._arguments import count_of
from pytest_precision.errors import expected_but_got
from pytest_precision.ranks.code.python_path import without_own_entry

OF_RECORDINGS = "out", "steps", "te", "values", "see", "lines", "only", "every", "digest"
"""Options that say what is recorded."""


def add_watch_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that watch a script to its end: --watch, --replay and --on-mismatch."""
    parser.add_argument(
        "--watch",
        metavar="N",
        type=count_of,
        nargs="?",
        const=1,
        default=0,
        help="record nothing, and run the script to its end: after every N-th update, 1 unless "
        "given, compare what ranks hold in common, and name the rank that deviates",
    )
    parser.add_argument(
        "--replay",
        action="store_true",
        help="record nothing, and run the script to its end: before each update, run forward and "
        "backward of the model once more, which must give the same bits",
    )
    parser.add_argument(
        "--on-mismatch",
        choices=["raise", "report"],
        default="raise",
        help="of a watched run in which something deviates: end it (the default), or say it on "
        "standard error and go on",
    )


def watch_script(args: argparse.Namespace) -> int:
    """Watch a script until it ends; return the exit status.

    Raises:
        WatchError: something deviates, and ends it.
        Exception: whatever the script raises.
    """
    parser: argparse.ArgumentParser = args.parser
    for name in OF_RECORDINGS:
        if getattr(args, name) != parser.get_default(name):
            expected = "--watch or --replay, which record nothing, alone"
            parser.error(expected_but_got(expected, f"--{name}, too"))
    with without_own_entry():
        with uncollected():
            from pytest_precision.recorders.scripts.script_file import (
                follow_file,
                report_script_alone,
            )
            from pytest_precision.recorders.watching.loop_watch import LoopWatch
        file, *arguments = args.script
        watch = LoopWatch(args.watch, args.on_mismatch, replay=args.replay)
        try:
            follow_file(Path(file), arguments, watch.followed())
        except (Exception, KeyboardInterrupt):
            report_script_alone(file)
            raise
    if not watch.steps:
        got = "no step of a torch.optim.Optimizer in this process"
        parser.error(expected_but_got(f"{file} to train", got))
    if is_first_rank():
        note(f"watched {watch.steps} steps")
    return 0
