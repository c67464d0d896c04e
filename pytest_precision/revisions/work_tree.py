"""Work tree: a commit of the user's repository, checked out in a temporary folder.

git notes each work tree in the repository. A process of its own (`tree_keeper`) adds the trees, and
removes them and the notes when this one ends, in whatever way.

A commit may be anybody's, so that the names in its trees may say any path: each is held against its
folder before anything of it is used.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_precision._git import git
from pytest_precision._within import fault_of, path_within
from pytest_precision.errors import RevisionError, expected_but_got, named

_START = """
import importlib, sys
sys.path.insert(0, sys.argv[1])
sys.exit(importlib.import_module("pytest_precision.revisions.tree_keeper").keep_trees())
"""
"""What starts a keeper, without the user's packages."""


def repository_of(folder: Path) -> Path:
    """Return the root of the repository that contains a folder.

    Raises:
        RevisionError: it belongs to none, or there is no git.
    """
    try:
        return Path(git(folder, "rev-parse", "--show-toplevel"))
    except RevisionError as error:
        raise RevisionError(
            expected_but_got("a script in a git repository", f"{folder}", str(error))
        ) from None


def commit_of(repository: Path, revision: str) -> str:
    """Return the full hash of the commit that a revision such as `HEAD~1` names.

    Raises:
        RevisionError: git knows no such commit.
    """
    try:
        return git(
            repository, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}"
        )
    except RevisionError:
        wrong = expected_but_got(
            f"a commit of {repository}", named("REVISION", revision), _to_have(repository, revision)
        )
        raise RevisionError(wrong) from None


def _to_have(repository: Path, revision: str) -> str:
    """Return the commands after which a repository has a revision that it lacks."""
    remotes = git(repository, "remote").splitlines()
    for remote in remotes:
        branch = revision.removeprefix(f"{remote}/")
        if branch != revision:
            return f"git fetch {remote} {branch}:refs/remotes/{revision}"
    if git(repository, "rev-parse", "--is-shallow-repository") == "true":
        return "git fetch --unshallow"
    return "git log --oneline lists them"


@contextmanager
def work_tree(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Check out a commit and its submodules in a new folder during the block.

    The index, the files and the branch of the user's own work tree are not touched. No hook runs.

    Args:
        repository: root of the repository.
        commit: full name of the commit.
        folder: does not exist yet; in a temporary folder of this process, outside the repository.

    Raises:
        RevisionError: git cannot check it out, a submodule's commit was never fetched, or an entry
            of the commit has a path that may lie elsewhere.
    """
    trees = [*_trees(repository, commit, folder.name)]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TreeKeeper(folder.parent) as keeper:
        for tree in trees:
            keeper.add(*tree)
        yield folder


class TreeKeeper:
    """Keeps work trees in a temporary folder of this process until the block ends.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        words = [sys.executable, "-I", "-S", "-c", _START, str(Path(__file__).parents[2])]
        self._is_adding = False
        self._process = subprocess.Popen(
            words,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # Ctrl-C is not meant for it
        )

    def add(self, repository: Path, commit: str, place: str) -> None:
        """Add a work tree: a commit of `repository`, at the path `place` in the folder.

        Raises:
            RevisionError: it cannot be added.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        self._is_adding = True
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([str(repository), commit, place]) + "\n")
            process.stdin.flush()
        answer = process.stdout.readline()
        self._is_adding = False
        if not answer:
            assert process.stderr is not None
            said = process.stderr.read().strip().splitlines() or [f"status {process.wait()}"]
            expected = f"a process that keeps work trees of {repository}"
            raise RevisionError(expected_but_got(expected, f"its end: {said[-1]}", "try again"))
        if fault := json.loads(answer):
            raise RevisionError(fault)

    def __enter__(self) -> TreeKeeper:
        return self

    def __exit__(self, *failure: object) -> None:
        with suppress(ProcessLookupError):
            if self._is_adding:  # after Ctrl-C: nobody waits for this tree
                os.killpg(self._process.pid, signal.SIGTERM)
        with suppress(BrokenPipeError):
            self._process.communicate()


def _trees(home: Path, commit: str, place: str) -> Iterator[tuple[Path, str, str]]:
    """Yield (repository, commit, place) for a commit and for all submodules in it.

    Raises:
        RevisionError: a submodule cannot be checked out.
    """
    yield home, commit, place
    for path, name in _submodules(home, commit):
        if not fault_of(path) and not (home / path / ".git").exists():
            continue  # this side has no files of it either
        inner_path = path_within(
            home,
            path,
            f"a submodule of commit {commit:.12}",
            advice="the commit cannot be checked out safely; see git fsck",
            error=RevisionError,
        )
        _expect_fetched(inner_path, name)
        yield from _trees(inner_path, name, f"{place}/{path}")


def _submodules(home: Path, commit: str) -> list[tuple[str, str]]:
    """Return (path, commit) of each submodule of a commit.

    Raises:
        RevisionError: one has a path that lies in, or is, that of another entry.
    """
    listed = git(home, "ls-tree", "-r", "-z", commit).split("\0")
    entries = [entry.partition("\t") for entry in listed if entry]
    paths = Counter(path for _, _, path in entries)
    submodules = [
        (path, row.split(" ")[2]) for row, _, path in entries if row.startswith("160000 ")
    ]
    for path, _ in submodules:
        above = [path[:end] for end, letter in enumerate(path) if letter == "/"]
        if paths[path] > 1 or any(folder in paths for folder in above):
            expected = f"one entry of commit {commit:.12} in each place"
            raise RevisionError(
                expected_but_got(
                    expected,
                    f"the submodule {named('path', path)} in the place of another entry",
                    "the commit cannot be checked out safely; see git fsck",
                )
            )
    return submodules


def _expect_fetched(submodule: Path, commit: str) -> None:
    root = git(submodule, "rev-parse", "--show-toplevel")
    if os.path.realpath(root) != os.path.realpath(submodule):
        raise RevisionError(
            expected_but_got(
                f"the submodule {submodule} to be a repository",
                f"a folder of {root}",
                f"git submodule update --init {submodule}",
            )
        )
    try:
        git(submodule, "cat-file", "-e", f"{commit}^{{commit}}")
    except RevisionError:
        raise RevisionError(
            expected_but_got(
                f"commit {commit:.12} of the submodule {submodule}",
                "none",
                f"fetch it with git -C {submodule} fetch",
            )
        ) from None
