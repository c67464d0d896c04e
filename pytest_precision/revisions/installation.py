"""A Python interpreter, and the files from which it runs a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pytest_precision._within import path_within
from pytest_precision.errors import RevisionError, expected_but_got
from pytest_precision.ranks.code.relocation import PACKAGE

NEEDED = ("torch", "numpy", "pytest", "xxhash", "safetensors")
"""What an interpreter needs to record, besides this package, which is put on its path."""

ANSWER_SECONDS = 120.0
"""Time for an interpreter to say what it has: its files may lie on a slow disk."""

START = """
import ctypes, importlib, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG: end with the process that waits
sys.path[0], (module, name) = sys.argv.pop(1), sys.argv.pop(1).split(":")
sys.exit(getattr(importlib.import_module(module), name)())
"""
"""What starts a function.

`python -m` would take this package from a work tree that has one."""

_LACKS = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


def called(revision: str, commit: str, python: Path | None) -> str:
    """Return how messages name a commit, with the interpreter `python` if that is given."""
    name = commit[:12] if commit.startswith(revision) else f"{revision} ({commit:.12})"
    return f"{name} with {python}" if python else name


def link_package(folder: Path) -> Path:
    """Make a folder with a link to this package alone, for an interpreter without it."""
    folder.mkdir()
    (folder / PACKAGE.name).symlink_to(PACKAGE)
    return folder


@dataclass(frozen=True)
class Installation:
    """A Python interpreter, and the commit or present files of the repository that it runs.

    Attributes:
        name: what messages call it.
        python: the interpreter.
        places: root of the user's repository, and the work tree of a commit that is checked out in
            place of it; None without one.
    """

    name: str
    python: Path
    places: tuple[Path, Path] | None = None

    def words(self, package: Path, function: str) -> list[str]:
        """Return the command, as a list of words, that runs a function in this interpreter.

        Args:
            package: first folder of its `sys.path`; for this package see `link_package`.
            function: `module:function`, which returns the exit status.
        """
        return [str(self.python), "-c", START, str(package), function]

    @property
    def is_of_this_interpreter(self) -> bool:
        """Return whether the interpreter is that of this process."""
        return self.python == Path(sys.executable)

    def folder_of(self, path: Path) -> Path:
        """Return the work tree's folder, or file, for one of the user's repository.

        Raises:
            RevisionError: the commit has a link there that leads out of the work tree.
        """
        path = Path(os.path.abspath(path))
        if self.places is None or not path.is_relative_to(self.places[0]):
            return path
        root, tree = self.places
        if path == root:
            return tree
        # Unlike code, a folder is of the commit even where an environment lies around it.
        expected = f"a part of {self.name}"
        advice = "the commit has a link there; compare with another one"
        name = path.relative_to(root).as_posix()
        return path_within(tree, name, expected, follow=True, advice=advice, error=RevisionError)

    def expect_able(self, flag: str = "--python") -> None:
        """Raise if the interpreter lacks a package that recording needs, such as torch.

        Args:
            flag: the option that names it.

        Raises:
            RevisionError: with what it lacks.
        """
        try:
            words = [str(self.python), "-c", _LACKS, *NEEDED]
            done = subprocess.run(
                words,
                capture_output=True,
                encoding="utf-8",
                errors="replace",
                check=True,
                timeout=ANSWER_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise RevisionError(
                expected_but_got(
                    "a Python interpreter that starts",
                    f"{flag}={self.python} ({error})",
                    "give the path of one, such as .venv/bin/python",
                )
            ) from error
        lacks = json.loads(done.stdout)
        if lacks:
            raise RevisionError(
                expected_but_got(
                    f"{', '.join(NEEDED)} in {flag}={self.python}",
                    f"no {', no '.join(lacks)}",
                    f"{self.python} -m pip install {' '.join(lacks)}",
                )
            )
