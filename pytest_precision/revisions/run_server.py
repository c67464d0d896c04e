"""The server of runs: a process that has imported what records a script, forked for each run.

It is a new interpreter like that of a single run, which stops before the script would start. What
a run finds in its process is what it would find in one of its own: the arguments, the folder, the
standard streams, the signals, the modules and `sys.path` are those of such a process, and it ends
as one. Two runs of one server share the seed of hashes and the addresses of objects that were
there before them; see `RunServers`.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import pickle
import signal
import socket
import struct
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_precision._interrupts import WholeTorch, uncollected
from pytest_precision.ranks.code.python_path import without_own_entry
from pytest_precision.ranks.code.relocation import in_tree

BEFORE_A_SCRIPT = (
    "pytest_precision.recorders.scripts.loop_trace",
    "pytest_precision.recorders.scripts.recorded_part",
    "pytest_precision.recorders.scripts.script_file",
)
"""What `record` imports before the script."""

STREAMS = 3
"""Number of the standard streams, which come with each request."""

PACKED_SIZE, PACKED_NUMBER = struct.Struct("!Q"), struct.Struct("!q")

NOT_FORKED = 0
"""Takes the place of a process number where a run needs an interpreter of its own."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_SIGNALS = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)
"""They reach a whole job, and end this process with the one that has started it."""


@dataclass(frozen=True)
class RunRequest:
    """A run of the command line: what a new interpreter would be started with.

    Attributes:
        words: the interpreter, `-c`, the program, the folder of the package, the function, and the
            arguments of the command line.
        folder: the working directory.
        places: as in `Installation`.
        variables: environment variables that one server outlives.
    """

    words: tuple[str, ...]
    folder: str
    places: tuple[Path, Path] | None
    variables: dict[str, str]

    def __call__(self) -> int:
        """Reset this process to the state of a new interpreter, and run; return the exit status."""
        os.chdir(self.folder)
        os.environ.update(self.variables)
        sys.orig_argv[:] = self.words
        sys.argv[:] = ["-c", *self.words[5:]]
        importlib.invalidate_caches()
        if "numpy.random" in sys.modules:
            sys.modules["numpy.random"].seed()  # Python's own generator seeds itself after a fork
        main: Callable[[], int] = importlib.import_module("pytest_precision.__main__").main
        return main()


@dataclass(frozen=True)
class CallRequest:
    """A call of a function of this package, whose result or exception is written to a file.

    Attributes:
        pickled: the function without arguments, which only the fork may import.
        answer: the file.
    """

    pickled: bytes
    answer: Path
    places: None = None

    def __call__(self) -> int:
        """Call the function and write the file; return the exit status."""
        try:
            outcome: tuple[bool, Any] = True, pickle.loads(self.pickled)()
        except Exception as error:
            outcome = False, error
        self.answer.write_bytes(pickle.dumps(outcome))
        return 0


def serve_runs() -> int:
    """Serve requests until the process that sends them is gone; in a fork, return its status."""
    line = socket.socket(fileno=int(sys.argv[1]))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    importlib.import_module("pytest_precision.__main__")
    with WholeTorch().watching(), without_own_entry(), uncollected():
        for name in BEFORE_A_SCRIPT:
            importlib.import_module(name)
    os.chdir("/")  # the folder that it has begun in, a commit's work tree, may be removed
    able = _forks_alone()
    while message := received(line):
        request, streams = message
        process = _fork(request) if able else NOT_FORKED
        if process is None:
            line.close()
            return _serve(request, streams, mask)
        for stream in streams:
            os.close(stream)
        line.sendall(PACKED_NUMBER.pack(process))
        if process != NOT_FORKED:
            _bury(process, line)
    os._exit(0)


def _fork(request: RunRequest | CallRequest) -> int | None:
    """Fork; return the process number, NOT_FORKED if this process has the user's own modules.

    A new interpreter of a commit's would have imported them from its work tree.
    """
    if request.places is not None and _has_modules_of(*request.places):
        return NOT_FORKED
    server = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which there are none of
        process = os.fork()
    if process:
        return process
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)
    return None


def _serve(
    request: RunRequest | CallRequest, streams: list[int], mask: set[int | signal.Signals]
) -> int:
    """Serve a request in the process that was forked for it; return its exit status."""
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return request()


def _bury(process: int, line: socket.socket) -> None:
    """Tell how a fork has ended, and bury it once that is heard: until then, its number is its."""
    ended = os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    sign = 1 if ended.si_code == os.CLD_EXITED else -1
    line.sendall(PACKED_NUMBER.pack(sign * ended.si_status))
    line.recv(1)
    os.waitpid(process, 0)


def _forks_alone() -> bool:
    """Return whether a fork of this process leaves no thread behind.

    Those of OpenBLAS end before a fork, and begin again in either process when they are needed.
    """
    process = os.fork()
    if process == 0:
        os._exit(0)
    os.waitpid(process, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _has_modules_of(root: Path, tree: Path) -> bool:
    files = [getattr(module, "__file__", None) for module in [*sys.modules.values()]]
    paths = [Path(file) for file in files if isinstance(file, str)]
    return any(in_tree(path, root, tree) != path for path in paths)


def send(line: socket.socket, request: RunRequest | CallRequest, streams: list[int]) -> None:
    """Send a request, with the descriptors of its standard streams."""
    pickled = pickle.dumps(request)
    socket.send_fds(line, [PACKED_SIZE.pack(len(pickled))], streams)
    line.sendall(pickled)


def received(line: socket.socket) -> tuple[RunRequest | CallRequest, list[int]] | None:
    """Return the next request and its descriptors; None if nobody sends any more."""
    head, streams, _, _ = socket.recv_fds(line, PACKED_SIZE.size, STREAMS)
    if not head:
        return None
    return pickle.loads(exactly(line, PACKED_SIZE.unpack(head)[0])), [*streams]


def exactly(line: socket.socket, size: int) -> bytes:
    """Return so many bytes.

    Raises:
        EOFError: the other process is gone.
    """
    content = b""
    while len(content) < size:
        part = line.recv(size - len(content))
        if not part:
            raise EOFError
        content += part
    return content
