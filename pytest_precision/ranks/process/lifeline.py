"""A rank ends with its controller, whatever ends that one, and takes its own children along.

Two ties, since neither covers all. A thread sees the controller's end of a pipe close; it cannot
run while the process is stopped, or while native code holds the interpreter's lock. So the kernel
also kills the rank when its parent dies, which is the fork server, and that ends with the
controller.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import shutil
import signal
import sys
import threading
from multiprocessing import forkserver
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from pytest_precision import _folders
from pytest_precision.ranks.process import undertaker

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def tie(folder: Path) -> None:
    """Ties this process, a fresh child of the fork server, to its controller.

    The process gets a session of its own, so that Ctrl-C in the terminal is the controller's affair
    and one signal reaches all that the rank starts.

    Args:
        folder: of the group; a controller that could not remove it leaves that to its ranks.
    """
    os.setsid()
    undertaker.hear()
    undertaker.adopt()
    parent = multiprocessing.parent_process()
    assert parent is not None
    threading.Thread(target=_watch, args=(parent, folder), daemon=True).start()
    if sys.platform == "linux":
        _let_server_end()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def release() -> None:
    """Ends what this process has started. A child that was forked holds copies of its sockets, and
    with them the peers that wait for this rank's end.
    """
    own = os.getpid()
    if os.getpgrp() != own:  # `tie` has failed: the group is pytest's
        return
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    undertaker.end_descendants(own)


def follow(folder: Path) -> NoReturn:
    """Ends this process and what it has started, as its controller is gone."""
    # Several ranks do this at a time: what one of them has removed is no error of the other.
    shutil.rmtree(folder, ignore_errors=True)
    undertaker.end_descendants(os.getpid())
    os.killpg(0, signal.SIGKILL)
    os._exit(1)  # the signal was for this process too


def _watch(controller: BaseProcess, folder: Path) -> None:
    wait([controller.sentinel])
    assert controller.pid is not None
    _folders.bury(controller.pid, {str(folder.parent)})
    follow(folder)


def _let_server_end() -> None:
    # The fork server lives until every holder of this pipe is gone, and hands it to its children so
    # that they can use the same server. A rank that keeps it would keep alive what it waits for.
    server = getattr(forkserver, "_forkserver", None)  # no public name
    descriptor = getattr(server, "_forkserver_alive_fd", None)
    if server is not None and descriptor is not None:
        os.close(descriptor)
        server._forkserver_alive_fd = None
