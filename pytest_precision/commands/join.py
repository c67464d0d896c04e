"""Make one recording of the folders of nodes that share no disk.

Each node's ranks record into a folder of the same name there. Copy these to one machine, and join
them; nothing in them changes. Ranks that have not finished are named, and of them `compare` reads
the steps that are whole.

Exit status 0 if they are joined, 2 if not.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import Any

from pytest_precision._visible import visible
from pytest_precision.commands import add_command, say
from pytest_precision.commands._arguments import place_argument
from pytest_precision.commands._out import add_out, expect_empty
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.trace.remote_folder import at_hand


def add_to(commands: Any) -> None:
    """Add the command `join` to the command line's parser."""
    text = "make one recording of the folders of nodes that share no disk"
    parser = add_command(commands, "join", run, text, __doc__)
    words = "folder, or address, into which the ranks of a node recorded"
    parser.add_argument("folders", metavar="DIR", type=place_argument, nargs="+", help=words)
    add_out(parser, "a new or empty folder")


def run(args: argparse.Namespace) -> int:
    """Join the folders of all nodes into a new one; return the exit status."""
    from pytest_precision.trace.joined import join_recording

    expect_empty(args)
    try:
        with ExitStack() as copies:
            folders = [copies.enter_context(at_hand(place)) for place in args.folders]
            ranks, noticed = join_recording(folders, args.out)
    except RecordingError as error:
        args.parser.error(visible(str(error)))
    except OSError as error:
        got = f"{error.filename} ({error.strerror})"
        args.parser.error(visible(expected_but_got("files that can be copied", got)))
    joined = f"{args.out}: {ranks} ranks of {len(args.folders)} folders"
    say(visible("\n".join([joined, *(f"  {words}" for words in noticed)])))
    return 0
