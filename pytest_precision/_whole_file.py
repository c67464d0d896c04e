"""Write a file to a temporary path and rename it into place, so that no partial file is seen."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def put_whole(path: Path, text: str, *, writer: int = 0) -> None:
    """Write a UTF-8 text file completely, or leave the old file as it is.

    If it cannot be written whole, nothing is left of it, and what was in its place stays.

    Args:
        path: where to.
        text: what.
        writer: tells processes apart that may write the same file at the same time.

    Raises:
        OSError: it cannot be written.
    """
    with placed_whole(path, writer=writer) as partial:
        partial.write_text(text, "utf-8")


@contextmanager
def placed_whole(path: Path, *, writer: int = 0) -> Iterator[Path]:
    """Yield a temporary path, and rename it to `path` when the block ends without an error.

    After an error of the caller's, nothing is left of it, and what was in its place stays.

    Args:
        path: where to.
        writer: as for `put_whole`.

    Raises:
        OSError: it cannot be moved.
    """
    partial = path.with_name(f"{path.name}.partial{writer}")
    try:
        yield partial
        os.replace(partial, path)
    except BaseException:  # Ctrl-C too
        partial.unlink(missing_ok=True)
        raise
