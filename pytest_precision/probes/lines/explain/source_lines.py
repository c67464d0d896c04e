"""Read lines of source files, of which a report quotes few, and those short."""

from __future__ import annotations

import linecache
from pathlib import Path, PurePath

from pytest_precision.parity.culprit import SourceLine

AROUND = 3
"""Lines above the line, and below it."""

WIDEST = 200
"""Characters of one line; generated code has lines of any length."""


def lines_around(file: str, line: int) -> tuple[SourceLine, ...]:
    """Return a line of a Python file and those around it; nothing if it cannot be read.

    Args:
        file: as code objects name it.
        line: from 1.
    """
    texts = lines_of(file)
    if not 1 <= line <= len(texts):
        return ()
    near = range(max(1, line - AROUND), min(len(texts), line + AROUND) + 1)
    return tuple(SourceLine(number, _short(texts[number - 1])) for number in near)


def lines_of(file: str) -> list[str]:
    """Return the lines of a Python file; none if it cannot be read.

    A recording of others may name any file of this machine, and a report leaves it: no other file
    than a source is quoted.

    Args:
        file: as code objects name it.
    """
    is_generated = file.startswith("<") and file.endswith(">")
    if "\0" in file or not (is_generated or PurePath(file).suffix == ".py"):
        return []
    linecache.checkcache(file)
    return linecache.getlines(file) or _undecoded(file)


def line_text(file: str, line: int) -> str:
    """Return one line of a Python file, as `lines_around` does; empty if it cannot be read."""
    return next((row.text for row in lines_around(file, line) if row.number == line), "")


def _undecoded(file: str) -> list[str]:
    """Return the lines of a file with undecodable bytes replaced; none if it cannot be read."""
    try:
        return Path(file).read_text(encoding="utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def _short(text: str) -> str:
    text = text.rstrip("\r\n")
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}…"
