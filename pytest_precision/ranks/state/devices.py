"""Devices: which GPU a rank gets, and whose turn it is on it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from pytest_precision.errors import DevicesBusyError

LOCKS = Path("/tmp")
"""Where the locks of this machine's devices are, the same for all users and processes: what TMPDIR
says may differ between them."""

PAUSE_SECONDS = 0.02
"""Between two looks at a device that somebody else has."""

_log = logging.getLogger(__name__)


def visible(variable: str | None, count: int) -> tuple[str, ...]:
    """The devices that this process may use, in the order of their indices.

    Args:
        variable: what CUDA_VISIBLE_DEVICES says; None where it is not set.
        count: of the devices that CUDA finds; it ignores what follows an entry that is none.
    """
    if variable is None:
        return tuple(map(str, range(count)))
    return tuple(entry.strip() for entry in variable.split(","))[:count]


def chosen(names: tuple[str, ...], ranks: int, per_device: int, worker: int) -> tuple[str, ...]:
    """The devices for the ranks of one group: one each if there are enough.

    Args:
        names: of the devices that may be used.
        ranks: number of ranks on this machine.
        per_device: how many ranks may share a device, where there are not enough.
        worker: number of the process that asks, of several that ask for as many: they start at
            different devices, so that they need not wait for each other.

    Returns:
        the devices of the first ranks; further ranks go through them again in turn. None if there
        are too few.
    """
    if ranks > len(names) * per_device:
        return ()
    first = worker * ranks % len(names)
    return (*names[first:], *names[:first])[:ranks]


def worker_number(xdist: str | None) -> int:
    """Number of a worker of xdist by its name, as PYTEST_XDIST_WORKER has it; 0 without."""
    digits = (xdist or "").removeprefix("gw")
    return int(digits) if digits.isdigit() else 0


def backend(device: str, shared: bool) -> str:
    """What a process group communicates with.

    Args:
        device: `cpu` or `cuda`.
        shared: whether ranks share a GPU, which nccl refuses.
    """
    if device == "cpu":
        return "gloo"
    return "cpu:gloo,cuda:gloo" if shared else "cpu:gloo,cuda:nccl"


@contextlib.contextmanager
def held(names: Collection[str], seconds: float, folder: Path = LOCKS) -> Iterator[None]:
    """Keeps all other processes of this machine off these devices meanwhile.

    The kernel lets go of a lock when its holder dies. Everybody takes them in the same order.

    Args:
        names: unique on this machine, empty where there is none to take.
        seconds: to wait at most.
        folder: of the locks.

    Raises:
        DevicesBusyError: somebody else still has one of them.
    """
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack:
        for name in sorted({*names} - {""}):
            descriptor = _opened(folder / f"pytest-precision-device-{name}.lock")
            stack.callback(os.close, descriptor)
            _take(descriptor, name, seconds, deadline)
        yield


def _opened(file: Path) -> int:
    # Without O_CREAT first: in /tmp the kernel refuses that for another user's file.
    with contextlib.suppress(FileNotFoundError):
        return os.open(file, os.O_RDWR | os.O_NOFOLLOW)
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
    with contextlib.suppress(PermissionError):  # somebody else was faster
        os.fchmod(descriptor, 0o666)  # whatever the umask
    return descriptor


def _take(descriptor: int, name: str, seconds: float, deadline: float) -> None:
    waits = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            written = os.pread(descriptor, 20, 0)  # by anybody: all users may write there
            holder = written.decode() if written.isdigit() else "unknown"
            if time.monotonic() >= deadline:
                raise DevicesBusyError(name, holder, seconds) from None
            if not waits:
                waits = True
                _log.warning("waiting for device %s, which process %s has", name, holder)
            time.sleep(PAUSE_SECONDS)
        else:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
            return
