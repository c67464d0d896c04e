"""End a rank and its children when the process that controls them ends, in whatever way.

Two mechanisms are needed, since neither covers every case. A thread sees the controller's end of a
pipe close; it cannot run while the process is stopped, or while native code holds the interpreter's
lock. So the kernel also kills the rank when its parent dies. The parent is the fork server, which
ends with the controller: its loop sees the pipe close, and while it still imports, a thread looks
for the controller.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from pytest_precision import _folder_owners
from pytest_precision.ranks.process import reaper

WATCH = "precision-watch"
"""Name of the thread that a fork server has while it imports."""
WATCH_SECONDS = 0.2
"""Pause between two looks for the controller."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_controllers: list[BaseProcess] = []
"""The process that controls this rank; multiprocessing may have forgotten it."""


def tie(folder: Path) -> None:
    """Make this new rank process end when the process that controls it ends.

    The process gets its own session, so that only the controller gets Ctrl-C from the terminal, and
    one signal reaches all processes that the rank starts.

    Args:
        folder: folder of the group, which the ranks remove if its owner could not.
    """
    os.setsid()
    reaper.restore_signals()
    reaper.adopt()
    parent = multiprocessing.parent_process()
    assert parent is not None
    _controllers[:] = [parent]
    threading.Thread(target=_watch, args=(parent, folder), daemon=True).start()
    if sys.platform == "linux":
        _let_server_end()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def tied_imports(controller: int, leave: Callable[[], None]) -> Iterator[None]:
    """End this fork server if the process that controls it ends while the block imports modules.

    The kernel cannot do that: it would do so at the end of the thread that has started the server.

    Args:
        controller: process number of the controller.
        leave: cleans up before the end.
    """
    over = threading.Event()

    def watch() -> None:
        while _folder_owners.lives(controller):
            if over.wait(WATCH_SECONDS):
                return
        leave()
        os._exit(1)

    watching = threading.Thread(target=watch, name=WATCH, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()  # a process with threads must not fork


def end_children() -> None:
    """Kill all processes that this one has started.

    A forked child holds copies of this rank's sockets, so the peers would not see the rank's end.
    """
    pid = os.getpid()
    if os.getpgrp() != pid:  # `tie` has failed: the process group is pytest's
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    reaper.end_descendants(pid)


def end_with_controller(folder: Path) -> NoReturn:
    """Kill this process and its children and remove its folder, since its parent has ended.

    The controller of this process may be a host of a launch, which does not own the folder.
    """
    for controller in _controllers:
        _folder_owners.remove_left(folder, controller.pid)
    reaper.end_descendants(os.getpid())
    os.killpg(0, signal.SIGKILL)
    os._exit(1)  # the signal was for this process too


def _watch(controller: BaseProcess, folder: Path) -> None:
    wait([controller.sentinel])
    assert controller.pid is not None
    _folder_owners.remove_of(controller.pid, {str(folder.parent)})
    end_with_controller(folder)


def _let_server_end() -> None:
    # The fork server lives until every holder of this pipe is gone, and passes it to its children
    # so that they can use the same server. A rank that kept it would keep the server alive, whose
    # end is meant to end the rank.
    server = getattr(forkserver, "_forkserver", None)  # no public name
    descriptor = getattr(server, "_forkserver_alive_fd", None)
    if server is not None and descriptor is not None:
        os.close(descriptor)
        server._forkserver_alive_fd = None
