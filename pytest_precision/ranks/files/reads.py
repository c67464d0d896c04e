"""Reads: an audit hook of Python that records the files that a rank opens.

What is installed does not count: neither Python and its packages nor the files of this package's
own temporary folders. What a job makes itself is no source of it.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

from pytest_precision._folder_owners import LOCK, PREFIX
from pytest_precision.ranks.code.installed import is_installed
from pytest_precision.ranks.files import open_files
from pytest_precision.ranks.files.sources import (
    COMPARED_FILES,
    Seen,
    UndigestedError,
    content_of,
    was_made,
)

KERNEL = ("/proc/", "/sys/", "/dev/")
SHARED_MEMORY = "/dev/shm/"
CACHES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""Variables with the folders of compilers, which find what they keep there by its content."""

PROCESSES = (
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.system",
    "subprocess.Popen",
)


class StaleBytecodeError(FileNotFoundError):
    """A bytecode file would be used although its source is newer or equally old.

    Python compares size and seconds, and a file written anew within a second may have both.
    """


class Reads:
    """Records the files that this process reads, from construction on."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, float]] = {}
        self._made: dict[str, float] = {}
        self._unseen: dict[str, None] = {}
        self._relative = False
        self._begun = False
        self._before = frozenset(open_files.readable_files())
        self._children = 0
        self._inside = threading.local()
        handlers: dict[str, Callable[..., None]] = {
            "open": self._opened,
            "import": self._extension,
            "ctypes.dlopen": self._library,
            "sqlite3.connect": self._database,
            "os.mkdir": self._folder_made,
            "os.rename": self._renamed,
            "os.listdir": self._listed,
            "os.scandir": self._listed,
            "socket.connect": self._connected,
            "socket.sendto": self._connected,
            **dict.fromkeys(PROCESSES, self._started),
        }

        # It runs at each event of the interpreter, of which there are many: `id()` is one.
        def hear(event: str, arguments: tuple[Any, ...], find: Any = handlers.get) -> None:
            handler = find(event)
            if handler is not None:
                self._handle(handler, arguments)

        sys.addaudithook(hear)

    def begin(self) -> None:
        """Start recording a new function call's files; the first call includes earlier reads."""
        if self._begun:
            self._read, self._relative = {}, False
        self._made, self._unseen, self._begun = {}, {}, True
        self._children = open_files.children_ended()

    def seen(self) -> Seen:
        """Return the files that the present function call has read and written."""
        for path in open_files.readable_files():
            known = path in self._read or path in self._before or self._is_no_source(path)
            if not known and not self._is_made(path):
                self._unseen[f"it has {path} open or mapped, and Python did not open it"] = None
        if open_files.children_ended() != self._children or open_files.has_children():
            self._started()
        return Seen(self._read, self._made, tuple(self._unseen), self._relative)

    def _handle(self, handler: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if getattr(self._inside, "hook", False):  # what a handler itself does
            return
        self._inside.hook = True
        try:
            handler(*arguments)
        except StaleBytecodeError:  # the import takes the source instead
            raise
        except Exception as error:
            self._unseen[f"it opened a file that cannot be identified: {error}"] = None
        finally:
            self._inside.hook = False

    def _opened(self, name: Any, mode: object, flags: int) -> None:
        if isinstance(name, int):  # whatever opened the descriptor was heard
            return
        path = _absolute(name)
        if self._is_no_source(path):
            return
        empties = flags & os.O_TRUNC or (flags & os.O_CREAT and not os.path.lexists(path))
        if empties:
            self._made.setdefault(path, time.monotonic())
        elif flags & os.O_ACCMODE != os.O_WRONLY:
            self._note(_source(path), is_relative=not os.path.isabs(os.fsdecode(name)))

    def _extension(self, module: str, file: str | None, *paths: object) -> None:
        if file is not None:
            self._note(_absolute(file))

    def _library(self, name: object) -> None:
        if isinstance(name, str) and os.sep in name:
            self._note(_absolute(name))

    def _database(self, name: Any) -> None:
        if name != ":memory:":
            self._opened(name, None, os.O_RDWR | os.O_CREAT)

    def _folder_made(self, name: Any, *mode: object) -> None:
        path = _absolute(name)
        if not os.path.lexists(path):
            self._made.setdefault(path, time.monotonic())

    def _renamed(self, source: Any, target: Any, *folders: object) -> None:
        if self._is_made(_absolute(source)):
            self._made.setdefault(_absolute(target), time.monotonic())

    def _listed(self, name: Any = None, *more: object) -> None:
        # Frames: this function, `_handle`, `hear`, and whoever lists: imports list sys.path.
        lister = sys._getframe(3).f_code.co_filename
        if isinstance(name, int) or lister.startswith("<frozen importlib"):
            return
        path = _absolute("." if name is None else name)
        if path != os.path.abspath(tempfile.gettempdir()):
            self._note(path, is_relative=name is None or not os.path.isabs(os.fsdecode(name)))

    def _started(self, *arguments: object) -> None:
        self._unseen["it started another process"] = None

    def _connected(self, socket: object, address: object = None, *more: object) -> None:
        place = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")
        if not isinstance(address, tuple) or tuple(map(str, address[:2])) != place:
            self._unseen[f"it connected to {address}"] = None

    def _note(self, path: str, *, is_relative: bool = False) -> None:
        if path in self._read or self._is_no_source(path) or self._is_made(path):
            return
        self._relative = self._relative or is_relative
        if len(self._read) > COMPARED_FILES:  # the controller says so
            return
        when = time.monotonic()
        try:
            self._read[path] = content_of(path), when
        except UndigestedError as error:
            self._unseen[str(error)] = None

    def _is_no_source(self, path: str) -> bool:
        if path.startswith(KERNEL) and not path.startswith(SHARED_MEMORY):
            return True
        caches = (os.environ.get(name) for name in CACHES)
        if any(path.startswith(os.path.join(folder, "")) for folder in caches if folder):
            return True
        return is_installed(path) or _is_in_own_folder(os.path.dirname(path))

    def _is_made(self, path: str) -> bool:
        return was_made(path, math.inf, self._made)


@cache
def reads_of_process() -> Reads:
    """Return the record of the files that this process reads; a fork inherits its parent's."""
    return Reads()


def _absolute(name: Any) -> str:
    path = os.path.abspath(os.fsdecode(name))
    # These name files of this process: its directory, or what it has open.
    return os.path.realpath(path) if path.startswith("/proc/") else path


def _source(path: str) -> str:
    """Return the path of the source of a `.pyc` file; return other paths unchanged.

    Raises:
        StaleBytecodeError: it may be that of an earlier source.
    """
    if not path.endswith(".pyc"):
        return path
    folder, name = os.path.split(path)
    prefix = sys.pycache_prefix
    if prefix is not None and folder.startswith(os.path.join(prefix, "")):
        folder = folder[len(prefix.rstrip(os.sep)) :]
    elif os.path.basename(folder) == "__pycache__":
        folder = os.path.dirname(folder)
    source = os.path.join(folder, f"{name.partition('.')[0]}.py")
    try:
        status = os.stat(source)
        written = max(status.st_mtime_ns, status.st_ctime_ns)  # nobody sets the latter back
        compiled = os.stat(path).st_mtime_ns
    except OSError:  # one of them is missing
        return source if os.path.exists(source) else path
    if compiled <= written:
        raise StaleBytecodeError(path)
    return source


@lru_cache(maxsize=1024)
def _is_in_own_folder(folder: str) -> bool:
    """Return whether a path is in a temporary folder of this package."""
    while True:
        folder, name = os.path.split(folder)
        if not name:
            return False
        if name.startswith(PREFIX) and os.path.exists(os.path.join(folder, name, LOCK)):
            return True
