"""Write a file to a temporary path and rename it into place, so that no partial file is seen."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def put_whole(path: Path, text: str) -> None:
    """Write a UTF-8 text file completely, or leave the old file as it is.

    If it cannot be written whole, nothing is left of it, and what was in its place stays. For files
    in folders of this package: `_destination` writes where a user says.

    Args:
        path: where to.
        text: what.

    Raises:
        OSError: it cannot be written.
    """
    with beside(path) as partial:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


@contextmanager
def beside(path: Path) -> Iterator[Path]:
    """Yield a new empty file in the folder of `path`, and remove it if the block leaves it there.

    Its name is one that nothing had, and has the number of this process.

    Args:
        path: whose folder it is.

    Raises:
        OSError: no file can be made there.
    """
    try:
        partial = _new_file(f"{path}.partial{os.getpid()}")
    except OSError as error:  # whoever reads of it knows the name that was asked for
        raise OSError(error.errno, error.strerror, str(path)) from error
    try:
        yield partial
    finally:
        partial.unlink(missing_ok=True)


def _new_file(start: str) -> Path:
    """Make an empty file whose path begins with `start`, and return that path."""
    for number in itertools.count():
        path = Path(f"{start}-{number}")
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666))
        except FileExistsError:  # of another thread, or somebody else's
            continue
        return path
    raise AssertionError
