"""What processes leave when they end: children in sessions of their own, and folders."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pytest_precision import _folders

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

_IGNORED: dict[int, Any] = {}
"""Signals that the process which attends a controller ignores, and what it did on them before."""


def adopt() -> None:
    """Makes this process the parent of descendants whose own parent ends, in place of init."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def attend(controller: int, parents: set[str]) -> None:
    """Sees to it that this process, which ends after its controller, leaves nothing of it.

    Args:
        controller: number of its process.
        parents: of its folders.
    """
    adopt()
    # A terminal that hangs up, and who ends a job of a shell, mean all that the controller started.
    for number in (signal.SIGHUP, signal.SIGTERM):
        _IGNORED[number] = signal.signal(number, signal.SIG_IGN)
    # The fork server's loop buries whom it adopts, and wonders.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    own = os.getpid()

    def leave() -> None:
        if os.getpid() == own:
            end_descendants(own)
            _folders.bury(controller, parents)

    atexit.register(leave)


def hear() -> None:
    """Has a fork of the process that attends hear again what that one ignores."""
    while _IGNORED:
        signal.signal(*_IGNORED.popitem())


def folders_are_in() -> set[str]:
    """The parents of all folders of a controller whose temporary folder is the one here."""
    from pytest_precision.ranks.process.server import short_folder

    temporary = tempfile.gettempdir()
    return {temporary, short_folder(temporary)}


def end_descendants(process: int, but: Collection[int] = ()) -> None:
    """Kill all that a process has started, in whatever session, and what these have started.

    Args:
        process: number of one that is there.
        but: children of it that stay, with what they have started.
    """
    for number in descendants(process, but):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)


def descendants(process: int, but: Collection[int] = ()) -> list[int]:
    """The children of a process that is there, except those in `but`, and theirs."""
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            status = (folder / "stat").read_text(errors="replace")
            parent = status.rpartition(")")[2].split()[1]  # what is before is the program's name
            children[int(parent)].append(int(folder.name))
    found = [child for child in children[process] if child not in but]
    for number in found:
        found += children[number]
    return found
