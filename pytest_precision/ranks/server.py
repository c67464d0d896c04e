"""The fork server, one for this process: it has imported torch, and ranks are its children."""

from __future__ import annotations

import functools
import multiprocessing
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, util

from pytest_precision.folders import OwnFolder

PRELOAD = ["pytest_precision.ranks.preload"]

LONGEST_PATH = 107
"""Bytes of a socket's path (sun_path in linux/un.h, less the zero at its end)."""
BELOW = len("/pytest-precision-server-12345678/pymp-12345678/listener-12345678")
"""Of it, what this module and multiprocessing append to the temporary folder."""
SHORT = ("/tmp", "/var/tmp", "/dev/shm")
"""Where to go if that folder has a long path."""

context = multiprocessing.get_context("forkserver")


def ensure_running() -> None:
    """Starts the server, which then imports torch by itself; nothing if it runs.

    Raises:
        OSError: no temporary folder is short enough for its socket.
    """
    context.set_forkserver_preload(PRELOAD)
    with _socket_in(_home()):
        forkserver.ensure_running()


def short_folder(wanted: str, others: tuple[str, ...] = SHORT) -> str:
    """The first of these folders that leaves room for the path of a socket.

    Raises:
        OSError: none does.
    """
    for folder in (wanted, *others):
        if len(os.fsencode(folder)) + BELOW <= LONGEST_PATH and os.access(folder, os.W_OK):
            return folder
    raise OSError(
        f"expected a temporary folder whose path has at most {LONGEST_PATH - BELOW} bytes, for a "
        f"socket, but got {wanted!r}; set TMPDIR to a shorter one"
    )


@functools.cache
def _home() -> OwnFolder:
    home = OwnFolder("server-", short_folder(tempfile.gettempdir()))
    # When multiprocessing has removed its own folder in it, which it does at -100.
    util.Finalize(None, home.close, exitpriority=-200)
    return home


@contextmanager
def _socket_in(home: OwnFolder) -> Iterator[None]:
    # multiprocessing makes the folder of its sockets when it needs the first one.
    before = tempfile.tempdir
    tempfile.tempdir = str(home.path)
    try:
        yield
    finally:
        tempfile.tempdir = before
