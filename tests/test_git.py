"""git is started in one place, and it starts nothing of the user's."""

from __future__ import annotations

import ast
import os
import subprocess
from pathlib import Path

import pytest

import pytest_precision
from pytest_precision._git import git
from pytest_precision.commands.bisect import untested
from pytest_precision.errors import RevisionError
from pytest_precision.report.provenance import session_run
from pytest_precision.revisions.work_tree import commit_of, repository_of, work_tree
from pytest_precision.trace.manifest import Manifest

HOOKS = (
    "post-checkout",
    "post-index-change",
    "reference-transaction",
    "pre-commit",
    "post-commit",
    "pre-auto-gc",
    "fsmonitor-watchman",
)


def users_git(folder: Path, *words: str) -> str:
    """Run git as a user does, with hooks; return what it prints."""
    names = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    return subprocess.run(
        ["git", *names, *words],
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"GIT_CONFIG_GLOBAL": os.devnull},
    ).stdout.strip()


@pytest.fixture
def hooked(tmp_path: Path) -> Path:
    """Return a repository whose hooks and monitor each leave a file `ran-NAME` beside it."""
    root = tmp_path / "mine"
    root.mkdir()
    users_git(root, "init", "-q")
    (root / "train.py").write_text("print()\n")
    users_git(root, "add", ".")
    users_git(root, "commit", "-q", "-m", "one")
    (root / ".git" / "hooks").mkdir(exist_ok=True)
    for name in HOOKS:
        hook = root / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran-{name}\n")
        hook.chmod(0o755)
    users_git(root, "config", "core.fsmonitor", str(hook))
    return root


def test_no_hook_runs_in_any_call(hooked: Path, tmp_path: Path) -> None:
    """A hook could install, fetch or remove something, in the midst of a comparison.

    That holds for the addition of a work tree, for its removal, for a bisection, for the revision
    that a recording has, for the state that a report has, and for the monitor of the file system,
    which is a program that the configuration names. All of them run when the user commits.
    """

    def ran() -> list[str]:
        return sorted(path.name for path in tmp_path.glob("ran-*"))

    def older() -> None:
        (hooked / "train.py").touch()
        os.utime(hooked / "train.py", (0, 0))

    for path in tmp_path.glob("ran-*"):  # of the fixture's own git
        path.unlink()
    head = commit_of(repository_of(hooked), "HEAD")
    with work_tree(hooked, head, tmp_path / "own" / "tree") as tree:
        assert untested(tree, [], head) == []
        git(tree, "log", "-1")
        assert ran() == []
    assert ran() == []
    older()
    assert Manifest.now(hooked / "train.py", (), 1, ()).revision == head
    older()
    assert session_run(hooked)["commit"] == head
    assert ran() == []
    older()
    users_git(hooked, "describe", "--always", "--dirty")
    users_git(hooked, "commit", "-q", "--allow-empty", "-m", "two")
    users_git(hooked, "checkout", "-q", "--detach")
    assert {*ran()} >= {f"ran-{name}" for name in (*HOOKS[:5], HOOKS[-1])}, "hooks cannot run here"


def test_only_one_module_starts_git() -> None:
    """Elsewhere no text of the package is the name of the program, in a list of words or alone."""
    package = Path(pytest_precision.__file__).parent
    starting = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value == "git"
    }
    assert starting == {"_git.py"}


def test_variables_of_another_repository_are_left_out(
    hooked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that runs this command has those of its own; the configuration by variables stays.

    In CI, `safe.directory` may come from there, without which git takes no repository of others.
    """
    head = git(hooked, "rev-parse", "HEAD")
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", "user.name")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", "of variables")
    monkeypatch.setenv("GIT_CONFIG_KEY_1", "core.hooksPath")
    monkeypatch.setenv("GIT_CONFIG_VALUE_1", "hooks")
    assert git(hooked, "rev-parse", "HEAD") == head
    assert git(hooked, "config", "user.name") == "of variables"
    assert git(hooked, "config", "core.hooksPath") == os.devnull


def test_a_failure_has_what_git_says(hooked: Path) -> None:
    """Every line that is an error, after the name of git's command; of no answer, the time."""
    with pytest.raises(RevisionError, match=r"^git log: fatal: .*no-such"):
        git(hooked, "log", "no-such")
    with pytest.raises(RevisionError, match=r"git to answer within 1e-09 s but got no answer"):
        git(hooked, "status", seconds=1e-9)


def test_the_end_of_a_folders_name_is_kept(tmp_path: Path) -> None:
    """Without the line feed at its end, it is the name of another folder."""
    folders = [tmp_path / name for name in ("mine", "mine\n")]
    for folder in folders:
        folder.mkdir()
        users_git(folder, "init", "-q")
    assert [repository_of(folder) for folder in folders] == folders
