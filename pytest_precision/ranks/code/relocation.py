"""Translate a job's file paths for ranks that run another commit or interpreter.

Jobs name files, folders and the import path as they are in the controller. A rank that runs the
code of another commit reads each as the same place in the work tree of that commit; one of another
interpreter keeps its own installed packages.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from types import ModuleType

from pytest_precision._within import path_within
from pytest_precision.errors import RevisionError, expected_but_got
from pytest_precision.ranks.code.installed import PACKAGE_FOLDERS, folders_of_interpreter

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of this package, which may lie in the repository: its own code is the same on both sides.
"""


def move_imports(root: Path, tree: Path) -> None:
    """Make this process and its children import the repository's code from a commit's work tree.

    These are the folders of `sys.path` and what editable installs have put into it, and what
    setuptools' finders of editable installs map. A folder that the commit lacks is left out.

    Args:
        root: root of the user's repository.
        tree: work tree of a commit of it.
    """
    sys.path[:] = moved_paths(sys.path, root, tree)
    packages: list[str] = []
    for name, finder in sorted(sys.modules.items()):
        if name.startswith("__editable__") and name.endswith("_finder"):
            packages += _move_mapping(finder, root, tree)
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    folders = [*moved_paths(filter(None, inherited), root, tree), *packages]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(folders))


def expect_moved(root: Path, tree: Path) -> None:
    """Raise if a module was imported from the user's checkout and not from the commit's work tree.

    Raises:
        RevisionError: with the first such module.
    """
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and _in_repository(Path(file), root, tree):
            raise RevisionError(
                expected_but_got(
                    f"all code of {root} to come from the commit",
                    f"module {name} from {file}",
                    "a compiled or installed part needs an environment of its own: --python PATH",
                )
            )


def moved_paths(paths: Iterable[str], root: Path, tree: Path) -> Iterator[str]:
    """Yield, for each folder of the repository, the same folder in a work tree if it exists there.

    Args:
        paths: folders, of which those outside the repository stay.
        root: root of the user's repository.
        tree: work tree of a commit of it.
    """
    for path in paths:
        moved_path = in_tree(Path(path), root, tree) if path else Path()
        if not path or moved_path == Path(path):
            yield path
        elif moved_path.exists():
            yield str(moved_path)


def in_tree(path: Path, root: Path, tree: Path) -> Path:
    """Map a file under `root` to the same file in a work tree; return other paths unchanged."""
    if not _in_repository(path, root, tree):
        return path
    return tree / path.resolve().relative_to(root)


def _move_mapping(finder: ModuleType, root: Path, tree: Path) -> Iterator[str]:
    """Redirect a finder of an editable install to a work tree; yield the mapped folders."""
    mapping: dict[str, str] = getattr(finder, "MAPPING", {})
    for name, path in [*mapping.items()]:
        if not _in_repository(Path(path), root, tree):
            continue
        moved_path = in_tree(Path(path), root, tree)
        if moved_path.exists() or moved_path.with_suffix(".py").exists():
            mapping[name] = str(moved_path)
            yield str(moved_path.parent)
        else:
            del mapping[name]
    spaces: Mapping[str, list[str]] = getattr(finder, "NAMESPACES", {})
    for folders in spaces.values():
        folders[:] = moved_paths(folders, root, tree)


@cache  # a rank asks it of all its modules after each job
def _in_repository(path: Path, root: Path, tree: Path) -> bool:
    """Return whether a file is in the repository, but not in this package, Python or `tree`."""
    path = path.resolve()
    others = [tree, PACKAGE, Path(sys.prefix), *map(Path, site.getsitepackages())]
    within = [folder for folder in others if folder.is_relative_to(root)]
    return path.is_relative_to(root) and not any(path.is_relative_to(folder) for folder in within)


@dataclass(frozen=True, slots=True)
class Relocation:
    """Translates paths of the controlling process into paths of another commit's work tree.

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
        """Return where the commit's work tree has a file of the user's checkout."""
        return path if self.places is None else str(in_tree(Path(path), *self.places))

    def folder_of(self, path: str) -> str:
        """Return the work tree's folder for a working directory; the tree's root if it has none.

        Raises:
            RevisionError: the commit has a link there that leads out of the work tree.
        """
        if self.places is None:
            return path
        tree = self.places[1]
        place = Path(self.path_of(path))
        if place != tree and place.is_relative_to(tree):
            name = place.relative_to(tree).as_posix()
            path_within(tree, name, "a folder of the commit", follow=True, error=RevisionError)
        return str(place if place.is_dir() else tree)

    def import_path(self, path: Iterable[str]) -> list[str]:
        """Convert the user's `sys.path` to one for ranks of another commit or interpreter."""
        folders = [entry for entry in path if not self.leaves(entry)]
        return [*dict.fromkeys([self.package, *self.moved(folders), *(_OWN if self.left else ())])]

    def moved(self, path: Iterable[str]) -> list[str]:
        """Convert the `sys.path` of this interpreter to the folders of the commit's work tree."""
        return [*path] if self.places is None else [*moved_paths(path, *self.places)]

    def expect_moved(self) -> None:
        """Raise if a module was imported from the user's checkout and not from the work tree.

        Raises:
            RevisionError: with the first such module.
        """
        if self.places is not None:
            expect_moved(*self.places)

    def expect_built(self, error: ImportError, path: Iterable[str]) -> None:
        """Raise if an import failed because the work tree lacks a built extension module.

        Args:
            error: what the import raised.
            path: the controller's `sys.path`.

        Raises:
            RevisionError: with the name of the module.
        """
        file = _compiled_module((error.name or "").replace(".", os.sep), path)
        if self.places is not None and file and not os.path.exists(self.path_of(file)):
            raise RevisionError(
                expected_but_got(
                    "all code of the repository to be in the commit",
                    f"module {error.name}, which is compiled here into {file}",
                    "have it built in the work tree: -o precision_against_build=COMMAND",
                )
            ) from error

    def leaves(self, entry: str) -> bool:
        """Return whether a `sys.path` entry is of an interpreter that the ranks do not run in."""
        if not self.left:
            return False
        name = os.path.basename(os.path.normpath(entry))
        return name in PACKAGE_FOLDERS or any(
            Path(entry).is_relative_to(folder) for folder in self.left
        )


_OWN: list[str] = []
"""The `sys.path` with which this process started, but for this package."""

_relocation_in_effect: list[Relocation] = []
"""The relocation of this process, if it has one."""


def settle(relocation: Relocation) -> None:
    """Make this process import code from another commit's work tree or another interpreter."""
    _OWN[:] = [entry for entry in sys.path if entry != relocation.package]
    _relocation_in_effect[:] = [relocation]
    if relocation.places is not None:
        move_imports(*relocation.places)


def relocation_of_process() -> Relocation | None:
    """Return how this process translates paths of the controlling one; None if it does not."""
    return _relocation_in_effect[0] if _relocation_in_effect else None


def relocated(path: str) -> str:
    """Return where this process has a file that the controlling process names."""
    return _relocation_in_effect[0].path_of(path) if _relocation_in_effect else path


def folders_left() -> tuple[str, ...]:
    """Return the folders of this interpreter, which must not be in another's `sys.path`."""
    version = f"python{sys.version_info.major}{sys.version_info.minor}.zip"
    zipped = os.path.join(os.path.dirname(sysconfig.get_path("stdlib")), version)
    return tuple(sorted(folders_of_interpreter() | {zipped}))


def _compiled_module(name: str, path: Iterable[str]) -> str:
    """Return the file of a compiled extension module on an import path; empty if there is none."""
    files = (os.path.join(entry, name + suffix) for entry in path for suffix in EXTENSION_SUFFIXES)
    return next(filter(os.path.isfile, files), "")
