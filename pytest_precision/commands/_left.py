"""Say what a command that records has left in its folder: a recording, or a part of one."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import TracebackType

from pytest_precision._progress import in_bytes
from pytest_precision.commands import note
from pytest_precision.trace.remote_folder import RemoteFolder

_OF_FIRST_RANK = re.compile(r"(\D0|recording)\.")
"""How the names of files begin that the first rank writes, such as `rank0.bin`."""


def size_of_first_rank(folder: Path) -> int:
    """Return the number of bytes that the first rank has written into a folder."""
    files = [file for file in folder.iterdir() if _OF_FIRST_RANK.search(file.name)]
    return sum(file.stat().st_size for file in files)


def say_recorded(
    place: Path | RemoteFolder, nbytes: int, script: str, steps: int, unit: str = "step"
) -> None:
    """Say what was recorded, how many bytes the first rank's part has, and where it lies."""
    plural = "" if steps == 1 else "s"
    note(f"recorded {steps} {unit}{plural} of {script} in {place}: {in_bytes(nbytes)}")


def report_unfinished(folder: Path, place: Path | RemoteFolder) -> None:
    """Have Python's report of an error end with what the error has left in a folder.

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
