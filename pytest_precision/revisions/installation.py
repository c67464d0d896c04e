"""Installation: an interpreter, and the files that it runs a script from."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pytest_precision.errors import RevisionError, expected_but_got

NEEDED = ("torch", "numpy", "pytest", "xxhash")
"""What an interpreter needs to record, besides this package, which is put on its path."""

_LACKS = """
import importlib.util, json, sys
print(json.dumps([name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]))
"""


@dataclass(frozen=True)
class Installation:
    """An interpreter, and the files that it runs a script from.

    Attributes:
        name: what messages call it.
        python: the interpreter.
        root: root of the user's repository; None if no commit of it is checked out.
        tree: work tree of a commit of it, in place of `root`.
    """

    name: str
    python: Path
    root: Path | None = None
    tree: Path | None = None

    @property
    def moves(self) -> tuple[str, ...]:
        """Return the root of the repository and its work tree; nothing without a work tree."""
        return () if self.root is None or self.tree is None else (str(self.root), str(self.tree))

    def place_of(self, path: Path) -> Path:
        """Return where a path of the user's repository is in this installation."""
        path = path.resolve()
        if self.root is None or self.tree is None or not path.is_relative_to(self.root):
            return path
        return self.tree / path.relative_to(self.root)

    def expect_able(self) -> None:
        """Refuse an interpreter that lacks what a recording needs.

        Raises:
            RevisionError: with what it lacks.
        """
        try:
            words = [str(self.python), "-c", _LACKS, *NEEDED]
            done = subprocess.run(words, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise RevisionError(
                expected_but_got("a Python interpreter", f"--python={self.python} ({error})")
            ) from error
        lacks = json.loads(done.stdout)
        if lacks:
            raise RevisionError(
                expected_but_got(
                    f"{', '.join(NEEDED)} in --python={self.python}",
                    f"no {', no '.join(lacks)}",
                    f"{self.python} -m pip install {' '.join(lacks)}",
                )
            )
