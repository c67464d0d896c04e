"""Kill processes and remove folders that a rank or its controlling process left behind."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pytest_precision import _folder_owners

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h

CONTROLLER = "PYTEST_PRECISION_CONTROLLER"
"""Environment variable with the controller's process number, for a fork server while it starts: its
parent may be another process by the time it looks."""

_FOR_A_SESSION = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""Signals to all processes of a controller: from a terminal that hangs up, from Ctrl-C, or from a
shell or a CI runner that ends a job."""

_IGNORED: dict[int, Any] = {}
"""Signals that the process which outlives its controller ignores, and their earlier handlers."""


def adopt() -> None:
    """Make this process the new parent of descendants whose parent ends (a subreaper)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGHUP, SIGINT and SIGTERM while the block starts a process.

    `reap_after` unblocks them there; one that came before it would end the process uncleaned.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _FOR_A_SESSION)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def reap_after(controller: int, parents: set[str]) -> Callable[[], None]:
    """Let this process outlive its `controller`; return a function that ends its descendants.

    Args:
        controller: process number of the controller.
        parents: folders in which the controller makes its own folders.

    Returns:
        Cleans up, for an exit that is none of Python.
    """
    adopt()
    for number in _FOR_A_SESSION:
        _IGNORED[number] = signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FOR_A_SESSION)
    # The fork server's loop reaps adopted children, and warns because it does not know them.
    warnings.filterwarnings("ignore", "forkserver: waitpid returned unexpected pid")
    pid = os.getpid()

    def leave() -> None:
        if os.getpid() == pid:
            end_descendants(pid)
            _folder_owners.remove_of(controller, parents)

    atexit.register(leave)
    return leave


def restore_signals() -> None:
    """Restore the handlers of the signals that the parent of this fork ignored."""
    while _IGNORED:
        signal.signal(*_IGNORED.popitem())


def end_descendants(process: int, but: Collection[int] = ()) -> None:
    """Kill all descendants of a process, also those in other sessions.

    Args:
        process: number of a process that is alive.
        but: children of it that are spared, with their descendants.
    """
    for number in descendants(process, but):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)


def descendants(process: int, but: Collection[int] = ()) -> list[int]:
    """Return the process numbers of all descendants, except the children in `but` and theirs."""
    if process == os.getpid() and not _has_children():
        return []  # most ranks: who parents whom is asked of every process of the machine
    children = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            status = (folder / "stat").read_text(encoding="utf-8", errors="replace")
            parent = status.rpartition(")")[2].split()[1]  # the program's name comes before it
            children[int(parent)].append(int(folder.name))
    processes = [child for child in children[process] if child not in but]
    for number in processes:
        processes += children[number]
    return processes


def _has_children() -> bool:
    """Return whether this process has children, running or ended and not waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
