"""Temporary folders that are removed with the processes that use them, however these end.

A process that is killed removes nothing: `_folder_owners` tells by a lock that it has ended.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import tempfile
from pathlib import Path

from pytest_precision._folder_owners import (
    LOCK,
    PREFIX,
    keep,
    lock_new,
    remove,
    share_lock,
    sweep,
)
from pytest_precision.errors import expected_but_got

_sweep_once = functools.cache(sweep)


def sweep_temporary_folder() -> None:
    """Remove the folders of killed processes from the temporary folder; only once in a process."""
    _sweep_once(tempfile.gettempdir())


class OwnFolder:
    """A new temporary folder of this process, which `close` removes.

    Args:
        word: part of the name, which tells the folder from others.
        parent: folder to make it in; by default the temporary folder.

    Attributes:
        path: path of the folder.
    """

    def __init__(self, word: str = "", parent: str | None = None) -> None:
        parent = tempfile.gettempdir() if parent is None else parent
        _sweep_once(parent)
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{word}", dir=parent))
        self._owner = os.getpid()
        self._lock = lock_new(self.path)

    @property
    def present(self) -> bool:
        """Whether this temporary folder still exists; something may have removed it meanwhile."""
        return _is_there(self.path, self._lock)

    def restore(self) -> bool:
        """Make this temporary folder again under the same name if it is gone.

        Returns:
            Whether it had to be made.
        """
        if self.present:
            return False
        self.path.mkdir(0o700, exist_ok=True)
        if self._lock is not None:
            os.close(self._lock)
        self._lock = lock_new(self.path)
        return True

    def close(self) -> None:
        """Remove this temporary folder; do nothing in a forked child, or in a second call."""
        if os.getpid() != self._owner:
            return
        remove(self.path)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *failure: object) -> None:
        self.close()


class SharedFolder:
    """A temporary folder that several processes of this user share.

    Each of them has a part in its lock until it ends.

    Args:
        name: name of the folder, the same in all of these processes.

    Attributes:
        path: path of the folder.

    Raises:
        PermissionError: other users could read or write in it.
    """

    def __init__(self, name: str) -> None:
        sweep_temporary_folder()
        self.path = self.place(name)
        self._lock: int | None = None
        for _ in range(TRIES):
            with contextlib.suppress(FileNotFoundError):
                self._make()
                self._lock = share_lock(self.path)
            if _is_there(self.path, self._lock):
                break
            self.let_go()  # another process has just removed the folder, since nobody had it

    def _make(self) -> None:
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(0o700)
        status = self.path.lstat()
        mode = stat.S_IMODE(status.st_mode)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or mode & 0o077:
            raise PermissionError(
                expected_but_got(
                    f"a folder that only user {os.getuid()} can enter",
                    f"{self.path} of user {status.st_uid} with mode {mode:o}",
                    "remove it, or set TMPDIR to another one",
                )
            )

    @staticmethod
    def place(name: str) -> Path:
        """Return the path of the shared folder with this name, whether or not the folder exists."""
        return Path(tempfile.gettempdir()) / f"{PREFIX}{name}"

    def keep(self, seconds: float) -> None:
        """Keep this shared folder for some time, even if no process uses it."""
        keep(self.path, seconds)

    def remove(self) -> None:
        """Remove this shared folder and its contents."""
        remove(self.path)
        self.let_go()

    def let_go(self) -> None:
        """Give up this process's part in the lock; the folder goes once nobody has one."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


TRIES = 100
"""Times that a shared folder is made while other processes remove it."""


def _is_there(folder: Path, lock: int | None) -> bool:
    """Return whether a folder is the one whose lock this process has; without locks, any folder."""
    try:
        lock_status = (folder / LOCK).stat()
        opened = os.fstat(-1 if lock is None else lock)
    except OSError:
        return lock is None and folder.is_dir()
    return (lock_status.st_dev, lock_status.st_ino) == (opened.st_dev, opened.st_ino)


LONGEST_PATH = 107
"""Most bytes of a socket's path (sun_path in linux/un.h, without the terminating zero)."""
BELOW = len("/pytest-precision-server-12345678/pymp-12345678/listener-12345678")
"""Bytes of it that the fork server and multiprocessing append to the temporary folder."""
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
"""Folders to use instead if the path of the temporary folder is too long."""


def folders_of_controllers() -> set[str]:
    """Return the folders in which the process that starts ranks makes its temporary folders."""
    temporary = tempfile.gettempdir()
    return {temporary, short_folder(temporary)}


def short_folder(tmpdir: str, others: tuple[str, ...] = SHORT_FOLDERS) -> str:
    """Return the first writable one of `tmpdir` and `others` whose path leaves room for a socket.

    Raises:
        OSError: none of the paths does.
    """
    for folder in (tmpdir, *others):
        if len(os.fsencode(folder)) + BELOW <= LONGEST_PATH and os.access(folder, os.W_OK):
            return folder
    raise OSError(
        expected_but_got(
            f"a temporary folder whose path has at most {LONGEST_PATH - BELOW} bytes, for "
            "a socket,",
            f"{tmpdir!r}",
            "set TMPDIR to a shorter one",
        )
    )
