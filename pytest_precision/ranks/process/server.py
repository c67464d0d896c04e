"""The fork server of this process: it has imported torch, and ranks are forked from it."""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import forkserver, resource_tracker, util
from pathlib import Path

from pytest_precision._folders import OwnFolder, short_folder
from pytest_precision.ranks.process import preloaded, reaper
from pytest_precision.ranks.process.coverage_of_ranks import FOR_PROCESSES
from pytest_precision.ranks.process.messages import MORE_TIME
from pytest_precision.ranks.state.environment import patched

PRELOAD = ["pytest_precision.ranks.process.preload"]

END_SECONDS = 1.0
"""Time between the end of the server's connections and its exit status."""

context = multiprocessing.get_context("forkserver")

starting = threading.Lock()
"""Is held while a rank starts: until then it is a child of the server that nobody here knows."""

_preloads: dict[int | None, tuple[str, ...]] = {}
"""Process number of a server to the modules that it has imported after torch."""


def ensure_running(preload: tuple[str, ...] = ()) -> None:
    """Start the fork server, which imports torch; do nothing if it is running.

    Args:
        preload: modules that it imports after torch; a server that has others is replaced.

    Raises:
        OSError: no temporary folder is short enough for its socket.
    """
    context.set_forkserver_preload(PRELOAD)
    home = _home()
    # Without its folder, its socket is gone too.
    if home.restore() or _preloads.get(_number()) not in (None, preload):
        kill()
    variables = {preloaded.VARIABLE: " ".join(preload), reaper.CONTROLLER: str(os.getpid())}
    with patched(variables, without=FOR_PROCESSES):
        # It is started here, since its start unblocks signals.
        resource_tracker.ensure_running()
        with _socket_in(home), reaper.signals_blocked():
            os.makedirs(util.get_temp_dir(), 0o700, exist_ok=True)
            forkserver.ensure_running()
    _preloads[_number()] = preload


@contextmanager
def answering(seconds: float) -> Iterator[None]:
    """Kill the fork server, and raise, if the block that waits for it exceeds `seconds`.

    Raises:
        TimeoutError: the server did not answer and was killed.
        ChildProcessError: the server has ended, as it does if it cannot start.
    """
    number = _number()
    over = threading.Event()
    doing = ""

    def give_up() -> None:
        nonlocal doing
        try:
            doing = _doing(number)
        finally:  # without them the wait has no limit
            over.set()
            kill()

    limit = threading.Timer(seconds, give_up)
    limit.daemon = True
    limit.start()
    try:
        yield
    except (EOFError, OSError) as error:
        if not over.is_set():
            _expect_running(number, error)
            raise
        raise TimeoutError(
            f"the fork server, process {number}, which starts ranks, did not answer within "
            f"{seconds:g} s: {doing}. It has been killed; the next group gets a new one"
        ) from error
    finally:
        limit.cancel()


def _doing(number: int | None) -> str:
    """Return in words why a fork server does not answer: it was stopped, or still imports."""
    with contextlib.suppress(OSError):  # it has ended, or this is not Linux
        # A process may have any bytes as its name.
        stat = Path(f"/proc/{number}/stat").read_text(encoding="utf-8", errors="replace")
        if stat.rpartition(")")[2].split()[0] in "Tt":
            return "it was stopped"
    return f"it may still import what ranks are made from, such as torch. {MORE_TIME}"


def _expect_running(number: int | None, error: Exception) -> None:
    """Raise an error with the exit status or signal of the fork server, if it has ended."""
    until = time.monotonic() + END_SECONDS
    while number is not None and time.monotonic() < until:
        try:
            ended = os.waitid(os.P_PID, number, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # somebody else has waited for it
            return
        if ended is not None:
            word = "exit status" if ended.si_code == os.CLD_EXITED else "signal"
            raise ChildProcessError(
                f"the fork server, process {number}, which starts ranks, has ended with {word} "
                f"{ended.si_status}; read what it wrote with -s, or start it alone: "
                f"{sys.executable} -c 'import {PRELOAD[0]}'"
            ) from error
        time.sleep(0.02)


def kill() -> None:
    """Kill the fork server, its ranks and their children; `ensure_running` starts another."""
    number = _number()
    if number is not None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            # What ranks have started would go to init, where nobody of this session finds it.
            os.kill(number, signal.SIGSTOP)
            try:
                reaper.end_descendants(number)
            finally:  # an interrupt must not leave it stopped
                os.kill(number, signal.SIGKILL)
            os.waitid(os.P_PID, number, os.WEXITED | os.WNOWAIT)  # multiprocessing waits again


def end_adopted() -> None:
    """Kill children of ended ranks, which the fork server has adopted."""
    number = _number()
    if number is not None:
        with starting:
            ranks = {process.pid for process in multiprocessing.active_children() if process.pid}
            reaper.end_descendants(number, but=ranks)


def _number() -> int | None:
    number: int | None = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    return number


@functools.cache
def _home() -> OwnFolder:
    home = OwnFolder("server-", short_folder(tempfile.gettempdir()))
    # This runs after multiprocessing has removed its own folder in it, at priority -100.
    util.Finalize(None, home.close, exitpriority=-200)
    return home


@contextmanager
def _socket_in(home: OwnFolder) -> Iterator[None]:
    # multiprocessing makes the folder of its sockets in tempfile.tempdir when it first needs one.
    before = tempfile.tempdir
    tempfile.tempdir = str(home.path)
    try:
        yield
    finally:
        tempfile.tempdir = before
