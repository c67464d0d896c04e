"""What a rank does instead of its work, in 14 ways, and the cause that must be named for it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest


class UnsendableError(Exception):
    def __reduce__(self) -> str:
        raise RuntimeError("does not pickle")


def raise_error() -> None:
    raise KeyError("planted")


def raise_unsendable() -> None:
    raise UnsendableError


def interrupt() -> None:
    raise KeyboardInterrupt


def leave() -> None:
    sys.exit("planted")


def exit_3() -> None:
    os._exit(3)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def crash() -> None:
    ctypes.string_at(0)


def abort() -> None:
    os.abort()


def flood() -> None:
    print("x" * 5_000_000)
    raise_error()


def orphan() -> None:
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    raise_error()


def skip() -> None:
    pytest.skip("planted")


def loop() -> None:
    while True:
        pass


def hold_lock() -> None:
    """Sleep in native code without letting another thread of Python run."""
    ctypes.PyDLL(None).sleep(600)


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


class Fault(NamedTuple):
    """One way to fail.

    Attributes:
        act: what the rank does.
        cause: that must be named.
        weight: how often it is drawn; what hangs takes seconds.
    """

    act: Callable[[], None]
    cause: str
    weight: int


FAULTS = {
    fault.act.__name__: fault
    for fault in (
        Fault(raise_error, "raised", 6),
        Fault(raise_unsendable, "raised", 4),
        Fault(interrupt, "exited", 4),
        Fault(leave, "exited", 4),
        Fault(exit_3, "died", 6),
        Fault(killed, "died", 6),
        Fault(crash, "died", 4),
        Fault(abort, "died", 4),
        Fault(flood, "raised", 4),
        Fault(orphan, "raised", 4),
        Fault(skip, "skipped", 4),
        Fault(loop, "hung", 1),
        Fault(hold_lock, "hung", 1),
        Fault(stop, "hung", 1),
    )
}
"""The faults by the names of what they do."""
