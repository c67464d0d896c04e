"""Digest the files of the user's modules, to notice when one has changed since it was imported.

Nothing else that a job reads is watched. What is kept between checks has a promise of its author
that it depends on its arguments and its cell alone; an edited module is what breaks it unnoticed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType

import xxhash

from pytest_precision.ranks.code.installed import users_file

ModuleFile = tuple[str, str]
"""The path of a file, and the digest of its content."""

NOT_THERE = "absent"
"""Digest of a file that is not there, or cannot be read."""


class ImportedFiles:
    """The files of the user's modules that this process has imported, digested at their import."""

    def __init__(self) -> None:
        self._known: dict[str, ModuleType] = {}
        self._news: set[ModuleFile] = set()

    def take_in(self) -> None:
        """Digest the files of the user's modules that were imported since this was last called."""
        if sys.modules == self._known:
            return
        for name, module in list(sys.modules.items()):
            if self._known.get(name) is not module and (file := users_file(module)) is not None:
                self.add(file)
        self._known = dict(sys.modules)

    def add(self, file: str) -> None:
        """Digest a file that is run without being imported, as that of a script is."""
        path = _on_disk(file)
        self._news.add((path, _digest(path)))

    def news(self) -> frozenset[ModuleFile]:
        """Return the files that were taken in since this was last called."""
        self.take_in()
        files = frozenset(self._news)
        self._news.clear()
        return files


@cache
def imported_files() -> ImportedFiles:
    """Return the files of the modules of this process; a fork has those of its parent."""
    return ImportedFiles()


def unchanged(files: Iterable[ModuleFile]) -> bool:
    """Return whether all files still have the content of which these digests were made."""
    return all(_digest(path) == digest for path, digest in files)


def _on_disk(file: str) -> str:
    """Return the file in which a module lies: its own, or the archive that it was imported from."""
    path = file
    while not os.path.lexists(path) and path != os.path.dirname(path):
        path = os.path.dirname(path)
    return path if os.path.isfile(path) else file


def _digest(path: str) -> str:
    with suppress(OSError):
        if os.path.isfile(path):  # to read a pipe would wait for somebody who writes
            return xxhash.xxh3_128_hexdigest(Path(path).read_bytes())
    return NOT_THERE
