"""Quote the lines around a line of code, and name its file, without folders of this machine.

A report leaves the machine: it names no folder of it, and what it quotes is short.
"""

from __future__ import annotations

import linecache
import os
from pathlib import Path, PurePath
from typing import NamedTuple

from pytest_precision.parity.culprit import SourceLine
from pytest_precision.ranks.code.installed import PACKAGE_FOLDERS, is_installed

AROUND = 3
"""Lines above the line, and below it."""

WIDEST = 200
"""Characters of one line; generated code has lines of any length."""


class ShownFile(NamedTuple):
    """The path of a file as a report shows it, and whether it is outside the project."""

    file: str
    outside: bool


def shown_file(file: str, root: Path) -> ShownFile:
    """Return the path of a file as a report shows it, without folders of this machine.

    Args:
        file: as code objects name it: absolute, relative to the working directory, or no file at
            all, such as `<string>`.
        root: the root of the project.
    """
    if file.startswith("<"):
        return ShownFile(file, True)
    path = os.path.abspath(file)
    place = PurePath(path)
    if place.is_relative_to(root) and not is_installed(path):
        return ShownFile(place.relative_to(root).as_posix(), False)
    for number in range(len(place.parts) - 1, 0, -1):  # also one of another machine
        if place.parts[number - 1] in PACKAGE_FOLDERS:
            return ShownFile("/".join(place.parts[number:]), True)
    folder = Path(path).parent
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return ShownFile(place.relative_to(folder).as_posix(), True)


def lines_around(file: str, line: int) -> tuple[SourceLine, ...]:
    """Return a line of a file and those around it; nothing if it cannot be read.

    Args:
        file: as code objects name it.
        line: from 1.
    """
    linecache.checkcache(file)
    texts = linecache.getlines(file) or _undecoded(file)
    if not 1 <= line <= len(texts):
        return ()
    near = range(max(1, line - AROUND), min(len(texts), line + AROUND) + 1)
    return tuple(SourceLine(number, _short(texts[number - 1])) for number in near)


def _undecoded(file: str) -> list[str]:
    """Return the lines of a file with undecodable bytes replaced; none if it cannot be read."""
    try:
        return Path(file).read_text("utf-8", errors="replace").splitlines()
    except (OSError, ValueError):
        return []


def _short(text: str) -> str:
    text = text.rstrip("\r\n")
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}…"
