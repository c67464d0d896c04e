"""Whole file: text that is moved into its place, so that no partial file looks whole."""

from __future__ import annotations

import os
from pathlib import Path


def put_whole(path: Path, text: str, *, writer: int = 0) -> None:
    """Write text into a file beside its place, in UTF-8, and move it there.

    If it cannot be written whole, nothing is left.

    Args:
        path: where to.
        text: what.
        writer: tells processes apart that may write the same file at the same time.

    Raises:
        OSError: it cannot be written.
    """
    partial = path.with_suffix(f".partial{writer}")
    try:
        partial.write_text(text, "utf-8")
        os.replace(partial, path)
    except BaseException:  # Ctrl-C too
        partial.unlink(missing_ok=True)
        raise
