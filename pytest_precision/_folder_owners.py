"""Which process owns a temporary folder, and the removal of folders whose owner has ended.

Each folder has a file that its owner keeps locked; the kernel releases the lock when the process
ends, however it does. Several processes may share a lock. A process that outlives the owner removes
its folders; otherwise the next command does, or the next process that needs a folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import secrets
import shutil
import socket
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

PREFIX = "pytest-precision-"
"""Prefix of the names of all these folders."""

GONE = f"{PREFIX}gone-"
"""Prefix of the names of folders that somebody removes; whoever finds one goes on with it."""

_GONE_NAME = re.compile(f"{GONE}[0-9a-f]{{16}}")
"""Their whole names: one with another end is no folder of this package."""

LOCK = ".owner"
OLD_SECONDS = 86400.0
"""Age from which an empty folder without an owner's file is one whose maker was killed at once."""
REMOVAL_SECONDS = 1.0
"""Time for the kernel to release the locks of a process that ends."""


@dataclass(frozen=True, slots=True)
class Owner:
    """The process that made a temporary folder, as read from a file in the folder.

    Attributes:
        machine: name of the machine.
        boot: boot id of that machine; process numbers and locks are valid within one boot only.
        process: number of the process.
    """

    machine: str
    boot: str
    process: int

    @classmethod
    def here(cls) -> Owner:
        """Return this process, with its machine and boot id, as the owner of folders."""
        return cls(socket.gethostname(), _boot(), os.getpid())

    @classmethod
    def of(cls, folder: Path) -> Owner | None:
        """Return the process that made a folder; None if the folder has no readable owner file."""
        try:
            machine, boot, process = (folder / LOCK).read_text(encoding="utf-8").split("\n")
            return cls(machine, boot, int(process))
        except (OSError, ValueError):
            return None

    def __str__(self) -> str:
        return f"{self.machine}\n{self.boot}\n{self.process}"

    def is_process(self, process: int | None) -> bool:
        """Return whether this owner is the process with the id `process` on this machine."""
        return (self.process, self.boot) == (process, _boot())

    @property
    def elsewhere(self) -> bool:
        """Return whether the owner may be on another machine, whose locks cannot be seen here."""
        return self.boot != _boot() and self.machine != socket.gethostname()


def lives(process: int) -> bool:
    """Return whether a process with this id is alive on this machine."""
    if process == os.getppid():
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True


def sweep(parent: str) -> None:
    """Remove the folders in `parent` that dead processes of this user left behind."""
    for folder in _folders(parent):
        with contextlib.suppress(OSError):  # gone, or not empty
            if _is_going(folder) or _is_left(folder):
                _remove_if_free(folder)
            elif not (folder / LOCK).exists() and _age(folder) > OLD_SECONDS:
                for unfinished in folder.glob(f"{LOCK}.*"):
                    unfinished.unlink()
                folder.rmdir()  # nobody says whose it is, so that what is in it stays


def remove_of(process: int, parents: set[str]) -> None:
    """Remove the folders in `parents` that belong to a process that is ending."""
    until = time.monotonic() + REMOVAL_SECONDS
    while time.monotonic() < until:
        left = [folder for parent in parents for folder in _folders(parent)]
        left = [folder for folder in left if _is_of(folder, process)]
        if not left:
            return
        for folder in left:
            _remove_if_free(folder)
        time.sleep(0.01)


def remove_left(folder: Path, process: int | None) -> None:
    """Remove a temporary folder whose owner has ended; several processes may do so at once.

    Args:
        folder: which one.
        process: number of a process on this machine that has ended, or is ending.
    """
    owner = Owner.of(folder)
    if owner is None or owner.is_process(process):
        shutil.rmtree(folder, ignore_errors=True)
    elif not owner.elsewhere:
        _remove_if_free(folder)


def _folders(parent: str) -> list[Path]:
    folders = []
    for folder in Path(parent).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # gone
            status = folder.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid():
                folders.append(folder)
    return folders


def _is_going(folder: Path) -> bool:
    return _GONE_NAME.fullmatch(folder.name) is not None


def _is_left(folder: Path) -> bool:
    lock = folder / LOCK
    if not lock.exists() or _age(lock) < 0:
        return False
    owner = Owner.of(folder)
    if owner is None:  # of a full disk; a file that says something else is somebody's own
        return lock.stat().st_size == 0
    return not owner.elsewhere


def _age(path: Path) -> float:
    """Return the seconds since a file's time; less than 0 of one that is kept until then."""
    return time.time() - path.lstat().st_mtime


def _is_of(folder: Path, process: int) -> bool:
    """Return whether process `process` made a folder, also if the folder's removal has begun."""
    if _is_going(folder):
        return True
    owner = Owner.of(folder)
    return owner is not None and owner.is_process(process)


def _remove_if_free(folder: Path) -> None:
    if _is_going(folder):
        shutil.rmtree(folder, ignore_errors=True)
        return
    lock = _locked(folder / LOCK)
    if lock is not None:
        remove(folder)
        os.close(lock)


def remove(folder: Path) -> None:
    """Remove a folder; rename it first, so that other processes see that it is being removed.

    Its lock file may be the first to go.
    """
    gone = folder.with_name(f"{GONE}{secrets.token_hex(8)}")
    with contextlib.suppress(OSError):  # somebody else has begun
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def keep(folder: Path, seconds: float) -> None:
    """Have a folder stay for some time, also if no process holds its lock."""
    until = time.time() + seconds
    with contextlib.suppress(FileNotFoundError):
        os.utime(folder / LOCK, (until, until))


def lock_new(folder: Path) -> int | None:
    """Put this process's owner file, locked, into a new folder; return the lock's descriptor.

    The file appears with its lock, so that no process finds it free and takes the folder for one
    whose owner has ended.

    Returns:
        None if the file cannot be made, or the file system has no locks.
    """
    return _put_locked(folder, fcntl.LOCK_EX, os.replace)


def share_lock(folder: Path) -> int | None:
    """Lock the owner file of a folder together with other processes; make it if there is none.

    Returns:
        The lock's descriptor, as of `lock_new`. Somebody may have removed the folder meanwhile.
    """
    if not (folder / LOCK).exists():
        # Of several that make one, the first puts its own there.
        lock = _put_locked(folder, fcntl.LOCK_SH, os.link)
        if lock is not None:
            os.close(lock)
    return _locked(folder / LOCK, fcntl.LOCK_SH)


def _put_locked(folder: Path, kind: int, put: Callable[[Path, Path], None]) -> int | None:
    unfinished = folder / f"{LOCK}.{secrets.token_hex(4)}"
    lock = None
    with contextlib.suppress(OSError):  # gone, or no place for a file
        os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL, 0o600))
        lock = _locked(unfinished, kind | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):  # the disk is full
            unfinished.write_text(str(Owner.here()), encoding="utf-8")
        with contextlib.suppress(FileExistsError):
            put(unfinished, folder / LOCK)
        unfinished.unlink(missing_ok=True)
    return lock


def _locked(file: Path, kind: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int | None:
    """Lock a file and return its descriptor; None if the file cannot be opened or locked."""
    try:
        descriptor = os.open(file, os.O_RDWR)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, kind)
    except OSError:  # another process holds it, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


@functools.cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip()
    except OSError:  # not Linux
        return ""
