"""Relocation: ranks of another commit or installation find there what their controller names here.

Jobs name files, folders and the import path as they are in the controller. A rank that runs the
code of another commit reads each as the same place in the work tree of that commit; one of another
interpreter keeps its own installed packages.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from pytest_precision.errors import RevisionError, expected_but_got
from pytest_precision.ranks.code.installed import PACKAGE_FOLDERS, folders_of_interpreter
from pytest_precision.ranks.code.moved_imports import (
    expect_moved,
    in_tree,
    move_imports,
    moved_paths,
)


@dataclass(frozen=True, slots=True)
class Relocation:
    """Where a rank finds what its controller names.

    Attributes:
        package: folder that has this package and nothing else, for an interpreter without it.
        places: root of the user's repository, and work tree of a commit of it; None where the
            files are the controller's own.
        left: folders of the controller's interpreter, which another one does without.
    """

    package: str
    places: tuple[Path, Path] | None = None
    left: tuple[str, ...] = ()

    def path_of(self, path: str) -> str:
        """Return the path that a file or folder of the controller has in the other revision."""
        return path if self.places is None else str(in_tree(Path(path), *self.places))

    def folder_of(self, path: str) -> str:
        """Return the current folder of these ranks; the root where the commit has no such one."""
        place = self.path_of(path)
        return place if self.places is None or os.path.isdir(place) else str(self.places[1])

    def import_path(self, path: Iterable[str]) -> list[str]:
        """Return the `sys.path` of these ranks for that of the controller."""
        kept = [entry for entry in path if not self.leaves(entry)]
        there = kept if self.places is None else [*moved_paths(kept, *self.places)]
        return [*dict.fromkeys([self.package, *there, *(_OWN if self.left else ())])]

    def expect_moved(self) -> None:
        """Refuse what was imported from the user's own files instead of from the work tree.

        Raises:
            RevisionError: with the first such module.
        """
        if self.places is not None:
            expect_moved(*self.places)

    def expect_built(self, error: ImportError, path: Iterable[str]) -> None:
        """Say what is to be done if an import failed for want of a compiled module of this side.

        Args:
            error: what the import raised.
            path: the controller's `sys.path`.

        Raises:
            RevisionError: with the name of the module.
        """
        file = _compiled((error.name or "").replace(".", os.sep), path)
        if self.places is not None and file and not os.path.exists(self.path_of(file)):
            raise RevisionError(
                expected_but_got(
                    "all code of the repository to be in the commit",
                    f"module {error.name}, which is compiled here into {file}",
                    "have it built in the work tree: -o precision_against_build=COMMAND",
                )
            ) from error

    def leaves(self, entry: str) -> bool:
        """Return whether a folder on the import path stays with the controller's interpreter."""
        if not self.left:
            return False
        name = os.path.basename(os.path.normpath(entry))
        return name in PACKAGE_FOLDERS or any(
            Path(entry).is_relative_to(folder) for folder in self.left
        )


_OWN: list[str] = []
"""The `sys.path` with which this process started, but for this package."""

_here: list[Relocation] = []
"""The relocation of this process, if it has one."""


def settle(relocation: Relocation) -> None:
    """Run all code of this process where a relocation says, from now on."""
    _OWN[:] = [entry for entry in sys.path if entry != relocation.package]
    _here[:] = [relocation]
    if relocation.places is not None:
        move_imports(*relocation.places)


def relocation_of_process() -> Relocation | None:
    """Return the relocation of this process; None for ranks of the controller's own code."""
    return _here[0] if _here else None


def relocated(path: str) -> str:
    """Return where a file of the controller is for this process."""
    return _here[0].path_of(path) if _here else path


def folders_left() -> tuple[str, ...]:
    """Return the folders of this interpreter, which another one does without."""
    version = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    zipped = os.path.join(os.path.dirname(sysconfig.get_path("stdlib")), version)
    return tuple(sorted(folders_of_interpreter() | {zipped}))


def _compiled(name: str, path: Iterable[str]) -> str:
    """Return the compiled module of that name; empty if there is none."""
    files = (os.path.join(entry, name + suffix) for entry in path for suffix in EXTENSION_SUFFIXES)
    return next(filter(os.path.isfile, files), "")
