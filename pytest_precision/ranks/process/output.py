"""A rank's output: into a file from the first word on, so that none reaches pytest's terminal."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import sys
from itertools import takewhile
from pathlib import Path

TAIL_BYTES = 4096
"""Of a rank's output, as much as a failure shows."""


def redirect(log: Path, stacks: Path) -> None:
    """Sends descriptors 1 and 2 of this process to `log`; SIGUSR1 writes all stacks to `stacks`.

    A crash in native code leaves its Python stack in the log.
    """
    # Append mode: after a truncation the next write starts at 0, not behind a hole.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    # The server's stream objects may be missing or hold text that is not ours. Line buffering
    # keeps what was printed before a rank is killed.
    sys.stdout = _stream(1)
    sys.stderr = _stream(2)
    faulthandler.enable(2, all_threads=False)
    dump = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True)


def restart(log: Path) -> None:
    """Empties this rank's log: a group that is kept must not fill the disk."""
    flush()
    os.truncate(log, 0)


def flush() -> None:
    """Writes out what Python still holds of this rank's output."""
    for stream in (sys.stdout, sys.stderr):
        # A job may have put anything there.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def tail(log: Path) -> str:
    """The last `TAIL_BYTES` of a rank's output, empty where there is none."""
    try:
        with log.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def readable(stacks: str) -> str:
    """What `redirect` made SIGUSR1 write, without the frames and the thread of this package."""
    package = str(Path(__file__).parents[1])  # with the frames of all of `ranks`
    threads = []
    for thread in stacks.split("\n\n"):
        if f"{package}/process/lifeline.py" in thread:
            continue
        frames = takewhile(lambda line: package not in line, thread.splitlines())
        threads.append("\n".join(frames))
    return "\n\n".join(threads)


def _stream(descriptor: int) -> io.TextIOWrapper:
    return open(
        descriptor, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )
