"""Redirect a rank's stdout and stderr to a file, to keep them out of pytest's terminal."""

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
"""Number of bytes at the end of a rank's output that a failure shows."""


def redirect(log: Path, stacks: Path) -> None:
    """Redirect stdout and stderr of this process to `log`, and stacks on SIGUSR1 to `stacks`.

    A crash in native code writes its Python stack to the log.
    """
    # Append mode: after a truncation the next write starts at 0 and leaves no hole.
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
    # The fork server's stream objects may be missing or hold foreign text. Line buffering keeps
    # what was printed before a rank is killed.
    sys.stdout = _stream(1)
    sys.stderr = _stream(2)
    faulthandler.enable(2, all_threads=False)
    dump = os.open(stacks, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    faulthandler.register(signal.SIGUSR1, dump, all_threads=True)


def restart(log: Path) -> None:
    """Empty this rank's log file before each function call, so that it does not fill the disk."""
    flush()
    os.truncate(log, 0)


def flush() -> None:
    """Flush this rank's buffered output."""
    for stream in (sys.stdout, sys.stderr):
        # A job may have replaced them by any object.
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()


def tail(log: Path) -> str:
    """Return the last `TAIL_BYTES` bytes of a rank's output; empty if there is none."""
    try:
        with log.open("rb") as file:
            length = file.seek(0, os.SEEK_END)
            file.seek(max(0, length - TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def readable_stacks(stacks: str) -> str:
    """Return the text of Python stacks without the frames and threads of this package."""
    package = str(Path(__file__).parents[1])  # the folder of `ranks`
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
