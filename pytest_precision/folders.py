"""OwnFolder: a temporary folder that goes with its process, whatever ends that.

A process that is killed removes nothing. So each folder has a file that its owner keeps locked; the
kernel lets go of the lock with the process, and the next process that needs a folder removes those
whose owner is gone.
"""

from __future__ import annotations

import fcntl
import functools
import os
import shutil
import stat
import tempfile
import time
from pathlib import Path

PREFIX = "pytest-precision-"
"""Of the names of all these folders."""

LOCK = ".owner"
YOUNG_SECONDS = 60.0
"""A folder of this age may be one whose owner is about to lock it."""


class OwnFolder:
    """A new folder, which `close` removes.

    Args:
        word: to tell it from others by its name.
        parent: where it is made, the temporary folder unless given.

    Attributes:
        path: of the folder.
    """

    def __init__(self, word: str = "", parent: str | None = None) -> None:
        parent = tempfile.gettempdir() if parent is None else parent
        _sweep_once(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{word}", dir=parent))
        self._owner = os.getpid()
        self._lock: int | None = _locked(self.path / LOCK, os.O_CREAT)

    def close(self) -> None:
        """Removes the folder and all in it. May be called again; a forked child removes nothing."""
        if os.getpid() != self._owner:
            return
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *failure: object) -> None:
        self.close()


def sweep(parent: str) -> None:
    """Removes the folders in `parent` that this user's dead processes have left."""
    for folder in Path(parent).glob(f"{PREFIX}*"):
        try:
            found = folder.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                continue
            young = time.time() - (folder / LOCK).stat().st_mtime < YOUNG_SECONDS
        except OSError:  # gone, or without an owner: not made by this class
            continue
        lock = None if young else _locked(folder / LOCK)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


_sweep_once = functools.cache(sweep)


def _locked(file: Path, flags: int = 0) -> int | None:
    """A descriptor that holds the lock of `file`; None where somebody else does."""
    try:
        descriptor = os.open(file, os.O_RDWR | flags, 0o600)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # held, or a file system without locks
        os.close(descriptor)
        return None
    return descriptor
