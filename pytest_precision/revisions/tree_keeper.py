"""A process that adds work trees, and removes those that it has added when its parent has ended.

Its working directory is the folder of the trees, so it can remove nothing outside: it knows each
tree by a name in that directory, and follows no link. Whatever becomes of the parent, also while a
tree is added, this process lives on until it has removed them.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_precision._git import git
from pytest_precision.errors import RevisionError, expected_but_got

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a git that this process has started, and never this process."""


def keep_trees() -> int:
    """Add the work trees that the parent asks for; at the end of input remove them; return 0.

    Each line of input is a JSON list: repository, commit, place. Each is answered with a line: a
    JSON text with what is wrong, empty if nothing is.
    """
    for number in SIGNALS:
        signal.signal(number, _go_on)  # unlike SIG_IGN, a started git does not inherit it
    added_trees = AddedTrees()
    for line in sys.stdin:
        fault = ""
        try:
            added_trees.add(*json.loads(line))
        except (RevisionError, OSError) as error:
            fault = str(error)
        with suppress(BrokenPipeError):  # the parent has been killed
            print(json.dumps(fault), flush=True)
    added_trees.remove()
    return 0


class AddedTrees:
    """The work trees that this process has added in its working directory."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._noted: list[tuple[Path, str]] = []

    def add(self, repository: str, commit: str, place: str) -> None:
        """Check out a commit in a new folder of the working directory.

        Args:
            repository: root of the repository.
            commit: full name of the commit.
            place: path of the tree, relative to the working directory: a new name, or a path in a
                tree that was added before.

        Raises:
            RevisionError: the path leads through a link, or git cannot check the commit out.
            OSError: the folder cannot be made.
        """
        name = place.partition("/")[0]
        if name not in self._names:
            os.mkdir(name)
            self._names.add(name)
        _make_without_links(place)
        path = os.path.join(os.getcwd(), place)
        with _alone_in(Path(repository)):
            words = ("worktree", "add", "--quiet", "--detach", "--no-checkout")
            git(Path(repository), *words, path, commit)
        self._noted.append((Path(repository), path))
        git(Path(path), "reset", "--quiet", "--hard", "--no-recurse-submodules")

    def remove(self) -> None:
        """Remove the trees, and what git has noted of them in their repositories."""
        for name in self._names:
            shutil.rmtree(name, ignore_errors=True)  # it refuses a link, and follows none
        for repository, path in reversed(self._noted):
            with suppress(RevisionError), _alone_in(repository):
                if not os.path.lexists(path) and _is_listed(repository, path):
                    # Nothing is there any more, so git removes its notes alone.
                    git(repository, "worktree", "remove", "--force", "--force", path)


@contextmanager
def _alone_in(repository: Path) -> Iterator[None]:
    """Wait for other keepers of the repository's work trees, and have them wait during the block.

    A git that lists the work trees fails where another one is just adding or removing one.
    """
    folder = os.open(repository / git(repository, "rev-parse", "--git-common-dir"), os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _is_listed(repository: Path, path: str) -> bool:
    return f"worktree {path}" in git(repository, "worktree", "list", "--porcelain").split("\n")


def _make_without_links(place: str) -> None:
    """Make a folder and those above it in the working directory, without following a link.

    Raises:
        RevisionError: a part of the path is a link or a file.
    """
    holder = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in place.split("/"):
            with suppress(FileExistsError):
                os.mkdir(part, dir_fd=holder)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=holder)
            os.close(holder)
            holder = inner
    except OSError as error:
        raise RevisionError(
            expected_but_got(
                "a submodule in a folder of its commit",
                f"path={place.partition('/')[2]!r}, where {part!r} is a link or a file",
                "the commit cannot be checked out safely",
            )
        ) from error
    finally:
        os.close(holder)


def _go_on(number: int, frame: object) -> None:
    """Ignore a signal."""
