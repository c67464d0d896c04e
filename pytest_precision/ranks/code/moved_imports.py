"""Moved imports: what is imported from a repository comes from the work tree of a commit."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType

from pytest_precision.errors import RevisionError, expected_but_got

PACKAGE = Path(__file__).resolve().parents[2]
"""Folder of this package, which may lie in the repository: its own code is the same on both sides.
"""


def move_imports(root: Path, tree: Path) -> None:
    """Move the import paths of this process, and of those that it starts, into a work tree.

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
    """Refuse what was imported from the user's own files instead of from the work tree.

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
    """Yield folders as they are in a work tree, without those that it lacks.

    Args:
        paths: folders, of which those outside the repository stay.
        root: root of the user's repository.
        tree: work tree of a commit of it.
    """
    for path in paths:
        there = in_tree(Path(path), root, tree) if path else Path()
        if not path or there == Path(path):
            yield path
        elif there.exists():
            yield str(there)


def in_tree(path: Path, root: Path, tree: Path) -> Path:
    """Return where a path of the repository is in a work tree; any other path as it is."""
    if not _in_repository(path, root, tree):
        return path
    return tree / path.resolve().relative_to(root)


def _move_mapping(finder: ModuleType, root: Path, tree: Path) -> Iterator[str]:
    """Move what a finder maps; yield the folders that other processes find the same packages in."""
    mapping: dict[str, str] = getattr(finder, "MAPPING", {})
    for name, path in [*mapping.items()]:
        if not _in_repository(Path(path), root, tree):
            continue
        there = in_tree(Path(path), root, tree)
        if there.exists() or there.with_suffix(".py").exists():
            mapping[name] = str(there)
            yield str(there.parent)
        else:
            del mapping[name]
    spaces: Mapping[str, list[str]] = getattr(finder, "NAMESPACES", {})
    for folders in spaces.values():
        folders[:] = moved_paths(folders, root, tree)


@cache  # a rank asks it of all its modules after each job
def _in_repository(path: Path, root: Path, tree: Path) -> bool:
    """Return whether a path is in the repository, but in no environment and not this package."""
    path = path.resolve()
    others = [tree, PACKAGE, Path(sys.prefix), *map(Path, site.getsitepackages())]
    within = [one for one in others if one.is_relative_to(root)]
    return path.is_relative_to(root) and not any(path.is_relative_to(one) for one in within)
