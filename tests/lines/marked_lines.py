"""Marked lines: a comment at the end of a line of a script names what may be wrong there."""

from __future__ import annotations

from pathlib import Path


def marked(file: Path, wrong: str) -> int:
    """Return the number of the line whose comment names what is wrong, alone or among others."""
    comments = [line.partition("  # ")[2] for line in file.read_text().splitlines()]
    (found,) = [n for n, text in enumerate(comments, 1) if wrong in text.split(", ")]
    return found
