"""The output of commands that record: the option `--out`, and what is said of its folder.

It is a new folder, or an address of fsspec.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from pytest_precision._progress import in_bytes
from pytest_precision._visible import visible
from pytest_precision.commands import note
from pytest_precision.commands._arguments import folder_argument
from pytest_precision.errors import RecordingError, expected_but_got
from pytest_precision.trace.remote_folder import OutFolder, RemoteFolder, recorded_into

NEW_FOLDER = "a new or empty folder, the same for all ranks"

_OF_FIRST_RANK = re.compile(r"(\D0|recording)\.")
"""How the names of files begin that the first rank writes, such as `rank0.bin`."""


def add_out(
    parser: argparse.ArgumentParser,
    text: str = NEW_FOLDER,
    kind: Callable[[str], Path | RemoteFolder] = folder_argument,
) -> None:
    """Add the option `--out`, the folder that `expect_empty` makes, with this help."""
    required = kind is folder_argument  # a run that is watched writes nothing
    parser.add_argument("--out", metavar="DIR", type=kind, required=required, help=text)


def expect_empty(args: argparse.Namespace) -> None:
    """Make the output folder, and end with an error if it is not empty or not given."""
    if args.out is None:
        args.parser.error("the following arguments are required: --out")
    if not isinstance(args.out, Path):
        try:
            names = args.out.names()
        except RecordingError as error:
            args.parser.error(visible(str(error)))
        if names:
            got = f"--out={args.out}, which has {names[0]}"
            args.parser.error(
                visible(expected_but_got("a new or empty folder", got, "name another"))
            )
        return
    try:
        args.out.mkdir(parents=True, exist_ok=True)
        # The other ranks of a launch write only when this one has come so far, too.
        taken = next(args.out.iterdir(), None)
    except OSError as error:
        args.parser.error(
            expected_but_got("a folder that can be made", f"--out={args.out} ({error.strerror})")
        )
    if taken is not None:
        args.parser.error(
            expected_but_got(
                "a new or empty folder",
                f"--out={args.out}, which has {taken.name}",
                "name another, or delete this one if its recording was not finished",
            )
        )


@contextmanager
def folder_for(args: argparse.Namespace) -> Iterator[OutFolder]:
    """Yield the folder to record into; what is for an address is sent there."""
    try:
        with recorded_into(args.out) as folder:
            yield folder
    except RecordingError as error:
        args.parser.error(visible(str(error)))


def size_of_first_rank(folder: Path) -> int:
    """Return the number of bytes that the first rank has written into a folder."""
    files = [file for file in folder.iterdir() if _OF_FIRST_RANK.search(file.name)]
    return sum(file.stat().st_size for file in files)


def say_recorded(
    place: Path | RemoteFolder, nbytes: int, script: str, steps: int, unit: str = "step"
) -> None:
    """Print the number of recorded steps, the size of the first rank's files, and their folder."""
    plural = "" if steps == 1 else "s"
    note(f"recorded {steps} {unit}{plural} of {script} in {place}: {in_bytes(nbytes)}")


def report_unfinished(folder: Path, place: Path | RemoteFolder) -> None:
    """Append to Python's report of an error whether it left an unfinished recording.

    Args:
        folder: the one that was recorded into.
        place: where it is to be found.
    """
    report = sys.excepthook
    begun = folder.is_dir() and any(folder.iterdir())
    journaled = any(folder.glob("*.journal"))  # forwards and scores are written as a whole alone

    def report_left(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        report(kind, error, trace)
        if begun:
            steps = ", of which `compare` reads whole steps" if journaled else ""
            note(f"{place} has an unfinished recording{steps}: delete it, or name another --out")
        else:
            note("nothing was recorded")

    sys.excepthook = report_left
