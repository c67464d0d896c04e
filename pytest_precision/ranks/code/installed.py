"""Distinguish installed code from the user's own code, by file path.

Installed code is Python, this package, torch, each folder of the import path that has the name of
one for installed packages, and each file that the record of an installer lists. So it does not
matter whether torch comes from the interpreter's own folders, PYTHONPATH, a `.pth` file,
`pip install --target`, a module of a cluster or a checkout.

A project never becomes installed by what a build leaves in it: neither `*.egg-info` nor the
`*.dist-info` of a build tool has such a record, and an editable install records no source file. For
the same reason a link in a folder for installed packages counts for nothing: only where it leads,
or a record, does.
"""

from __future__ import annotations

import csv
import os
import site
import sys
import sysconfig
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

PACKAGE_FOLDERS = frozenset({"site-packages", "dist-packages"})
"""Names of folders on the import path that installers alone write to."""

SCHEME = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
"""Paths of the interpreter with installed code; `data` may be `/usr`, with others' code too."""


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or an installed package, not to the user's code."""
    path = tuple(sys.path)
    if _is_in_place(file, path):
        return True
    place = os.path.realpath(file)
    return place != file and _is_in_place(place, path)


def users_file(module: object) -> str | None:
    """Return the absolute path of a module of the user's code; None for other modules."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not os.path.isabs(file) or is_installed(file):
        return None
    return file


def folders_of_interpreter() -> set[str]:
    """Return the folders in which the interpreter of this process keeps installed code."""
    scheme = sysconfig.get_paths()
    return {*(scheme[key] for key in SCHEME), *site.getsitepackages(), site.getusersitepackages()}


# Each job asks for all modules of its process, and each process has thousands.
@lru_cache(maxsize=16_384)
def _is_in_place(file: str, path: tuple[str, ...]) -> bool:
    for folder in _folders(path):
        if file.startswith(folder):
            first, _, _ = file[len(folder) :].partition(os.sep)
            if not _is_link(folder + first):
                return True
    return any(file.startswith(f) and file[len(f) :] in _recorded_files(f) for f in _entries(path))


@lru_cache(maxsize=8)
def _folders(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders of Python and of installed packages, each with a separator at the end."""
    folders = folders_of_interpreter()
    folders |= {
        entry for entry in path if os.path.basename(os.path.normpath(entry)) in PACKAGE_FOLDERS
    }
    folders |= {str(Path(__file__).parents[2]), *_torch()}
    folders |= {os.path.realpath(folder) for folder in folders}
    return tuple(os.path.join(os.path.abspath(folder), "") for folder in sorted(folders))


@cache
def _torch() -> tuple[str, ...]:
    # What lies beside a torch that was built in its checkout, or copied to a folder of the user's,
    # may be the user's own; what was installed with torch is in its record.
    spec = find_spec("torch")
    return tuple(spec.submodule_search_locations or ()) if spec is not None else ()


@lru_cache(maxsize=8)
def _entries(path: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(os.path.join(entry, "") for entry in path if os.path.isabs(entry))


@cache
def _recorded_files(folder: str) -> frozenset[str]:
    """Return the files that the `*.dist-info/RECORD` files in a folder list, relative to it."""
    files: set[str] = set()
    for record in Path(folder).glob("*.dist-info/RECORD"):
        with record.open(newline="", encoding="utf-8", errors="surrogateescape") as lines:
            files.update(row[0] for row in csv.reader(lines) if row)
    return frozenset(files)


@cache
def _is_link(file: str) -> bool:
    return os.path.islink(file)
