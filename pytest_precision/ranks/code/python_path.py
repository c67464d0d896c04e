"""The `sys.path` of a script file: that of `python file`, whoever runs the file."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_precision.ranks.code.relocation import PACKAGE

_TELL = "import sys; print(); print(ascii(sys.path))"
"""What a new interpreter says last; code of its environment may print before it."""


def path_of_python() -> list[str]:
    """Return `sys.path` as a new interpreter makes it here, without the entry of what it runs.

    It is asked, since PYTHONPATH, `.pth` files and the interpreter's own folders decide about it,
    and pytest has added folders to that of its own process.

    Raises:
        subprocess.CalledProcessError: the interpreter does not start.
    """
    done = subprocess.run(
        [sys.executable, "-c", _TELL],
        stdout=subprocess.PIPE,
        encoding=sys.getfilesystemencoding(),
        check=True,
    )
    path: list[str] = ast.literal_eval(done.stdout.splitlines()[-1])
    return path if _is_safe() else path[1:]


@contextmanager
def without_own_entry() -> Iterator[None]:
    """Have `sys.path` without the entry of what this process runs, such as the folder of `-m`.

    If this package was found there, it goes last: children of the process must find it, too.
    """
    before = sys.path[:]
    if not _is_safe() and sys.path:
        folder = sys.path.pop(0)
        if (Path(folder) / PACKAGE.name).is_dir():
            sys.path.append(os.path.abspath(folder))
    try:
        yield
    finally:
        sys.path[:] = before


def path_of_file(file: Path, path: Sequence[str]) -> list[str]:
    """Return `sys.path` for a script file: its own folder, and then `path`."""
    return [*path] if _is_safe() else [str(file.resolve().parent), *path]


def _is_safe() -> bool:
    """Return whether Python puts no entry for what it runs (`-P`, PYTHONSAFEPATH)."""
    return bool(getattr(sys.flags, "safe_path", False))  # from Python 3.11
