"""Work tree: a commit of the user's repository, checked out in a temporary folder.

git notes each work tree in the repository. A process of its own removes the folder and the notes
when this one ends, in whatever way.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pytest_precision.errors import RevisionError, expected_but_got, named

_REMOVE = """
cat > /dev/null
while [ $# -gt 0 ]; do git -C "$1" worktree remove --force --force "$2"; rm -rf "$2"; shift 2; done
"""
"""Shell script that waits for the end of its input, then removes work trees, innermost first.

Its arguments are pairs of a repository and a work tree."""


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
        shallow = git(repository, "rev-parse", "--is-shallow-repository") == "true"
        advice = "git fetch --unshallow" if shallow else "git log --oneline lists them"
        raise RevisionError(
            expected_but_got(f"a commit of {repository}", named("REVISION", revision), advice)
        ) from None


@contextmanager
def work_tree(repository: Path, commit: str, folder: Path) -> Iterator[Path]:
    """Check out a commit and its submodules in a new folder during the block.

    The index, the files and the branch of the user's own work tree are not touched. No hook runs.

    Args:
        repository: root of the repository.
        commit: full name of the commit.
        folder: does not exist yet; outside the repository.

    Raises:
        RevisionError: git cannot check it out, or a submodule's commit was never fetched.
    """
    trees = [*_trees(repository, commit, folder)]
    pairs = [str(path) for home, tree, _ in reversed(trees) for path in (home, tree)]
    # Whoever holds the writing end keeps the trees: this process, and each git that adds one.
    reading, writing = os.pipe()
    remover = subprocess.Popen(
        ["sh", "-c", _REMOVE, "sh", *pairs],
        stdin=reading,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # Ctrl-C is not meant for it
    )
    os.close(reading)
    try:
        for home, tree, name in trees:
            words = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--force", "--detach")
            git(home, *words, str(tree), name, keep=(writing,))
        yield folder
    finally:
        os.close(writing)
        remover.wait()


def git(folder: Path, *words: str, keep: Sequence[int] = ()) -> str:
    """Run git in a folder, with `keep` as inherited file descriptors; return what it prints.

    Args:
        folder: where it runs.
        words: its arguments.
        keep: descriptors that it inherits.

    Raises:
        RevisionError: it failed; the message has its last line.
    """
    # A hook that runs this command would otherwise send git to the hook's repository.
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_HOOK}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            encoding=sys.getfilesystemencoding(),  # paths are text of it
            errors="surrogateescape",
            pass_fds=keep,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except OSError as error:
        raise RevisionError(
            expected_but_got("git to start", f"{error.strerror}", "install git")
        ) from error
    if done.returncode:
        last = (done.stderr.strip() or f"status {done.returncode}").splitlines()[-1]
        raise RevisionError(f"git {words[0]}: {last}")
    return done.stdout.strip()


_OF_A_HOOK = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_OBJECT_DIRECTORY"}


def _trees(home: Path, commit: str, folder: Path) -> Iterator[tuple[Path, Path, str]]:
    """Yield (repository, new work tree, commit) for a commit and for all submodules in it."""
    yield home, folder, commit
    for line in git(home, "ls-tree", "-r", "-z", commit).split("\0"):
        mode, _, rest = line.partition(" ")
        if mode == "160000":
            name, path = rest.removeprefix("commit ").split("\t")
            inner = home / path
            if not (inner / ".git").exists():
                continue  # this side has no files of it either
            _expect_fetched(inner, name)
            yield from _trees(inner, name, folder / path)


def _expect_fetched(submodule: Path, commit: str) -> None:
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
