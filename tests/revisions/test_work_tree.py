"""A commit is checked out beside the user's own files, and nothing of it stays."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from repository import Repository

from pytest_precision.errors import RevisionError
from pytest_precision.revisions.work_tree import commit_of, repository_of, work_tree


def test_a_commit_is_there_and_goes(repository: Repository, tmp_path: Path) -> None:
    """The files are those of the commit; a dirty work tree and its index stay as they are."""
    first = repository.commit("one", a="1")
    repository.commit("two", a="2")
    repository.write(a="3", b="4")
    repository.git("add", "b.py")
    before = repository.git("status", "--short")
    with work_tree(repository.root, first, tmp_path / "tree") as tree:
        assert [file.name for file in tree.glob("*.py")] == ["a.py"]
        assert (tree / "a.py").read_text() == "1"
        assert repository.trees() == 2
    assert not tree.exists()
    assert repository.trees() == 1
    assert repository.git("status", "--short") == before == "M a.py\nA  b.py"


def test_it_goes_when_the_body_raises(repository: Repository, tmp_path: Path) -> None:
    """An error of the body is passed on."""
    first = repository.commit("one", a="1")
    with pytest.raises(KeyError), work_tree(repository.root, first, tmp_path / "tree"):
        raise KeyError
    assert repository.trees() == 1


KILLED = """
import sys, time
from pathlib import Path
from pytest_precision.revisions.work_tree import work_tree
with work_tree(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])):
    print("there", flush=True)
    time.sleep(60)
"""


def test_it_goes_when_the_process_is_killed(repository: Repository, tmp_path: Path) -> None:
    """No handler runs in the process; another one sees its end."""
    first = repository.commit("one", a="1")
    words = [sys.executable, "-c", KILLED, str(repository.root), first, str(tmp_path / "tree")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert (tmp_path / "tree" / "a.py").exists()
        process.send_signal(signal.SIGKILL)
    until = time.monotonic() + 20
    while (repository.trees() > 1 or (tmp_path / "tree").exists()) and time.monotonic() < until:
        time.sleep(0.05)
    assert repository.trees() == 1
    assert not (tmp_path / "tree").exists()


@pytest.fixture
def slow(repository: Repository, tmp_path: Path) -> tuple[str, Path]:
    """Return a commit whose checkout waits, and the file that appears when it does."""
    (repository.root / ".gitattributes").write_text("*.py filter=slow\n")
    commit = repository.commit("slow", a="1")
    begun = tmp_path / "begun"
    repository.git("config", "filter.slow.smudge", f"touch {begun}; sleep 2; cat")
    return commit, begun


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_goes_when_the_process_ends_as_it_is_added(
    repository: Repository, tmp_path: Path, slow: tuple[str, Path], number: int
) -> None:
    """A tree that git is still writing is known to whoever removes it, since that process adds it.

    After SIGKILL the checkout goes on to its end, and then it goes. After Ctrl-C and SIGTERM, which
    commands turn into an exception, git is ended, so that nobody waits for the rest of it.
    """
    commit, begun = slow
    words = [sys.executable, "-c", KILLED, str(repository.root), commit, str(tmp_path / "tree")]
    ending = "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(3))"
    words[2] = ending + KILLED
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        until = time.monotonic() + 20
        while not begun.exists() and time.monotonic() < until:
            time.sleep(0.01)
        sent = time.monotonic()
        process.send_signal(number)
        assert process.wait(20) != 0
        took = time.monotonic() - sent
    if number == signal.SIGKILL:
        until = time.monotonic() + 20
        while repository.trees() > 1 and time.monotonic() < until:
            time.sleep(0.05)
    assert took < 2, "it waited for the checkout"
    assert repository.trees() == 1
    assert not (tmp_path / "tree").exists()
    assert not [*(repository.root / ".git").glob("worktrees/*")]


def test_several_commands_at_once(repository: Repository, tmp_path: Path) -> None:
    """Each has its tree in its own folder, and removes that alone."""
    commit = repository.commit("one", a="1")
    with ExitStack() as stack:
        trees = [
            stack.enter_context(work_tree(repository.root, commit, tmp_path / str(k) / "tree"))
            for k in range(3)
        ]
        with ThreadPoolExecutor() as pool:

            def again(k: int) -> bool:
                with work_tree(repository.root, commit, tmp_path / f"more{k}" / "tree") as tree:
                    return (tree / "a.py").exists()

            assert all(pool.map(again, range(6)))
        assert all((tree / "a.py").exists() for tree in trees)
        assert repository.trees() == 4
    assert repository.trees() == 1


def test_no_hook_of_the_user_runs(repository: Repository, tmp_path: Path) -> None:
    """One after a checkout could install, or fetch."""
    first = repository.commit("one", a="1")
    hook = repository.root / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    with work_tree(repository.root, first, tmp_path / "tree"):
        assert not (tmp_path / "ran").exists()
    repository.git("checkout", "-q", "--detach")
    assert (tmp_path / "ran").exists(), "the hook was never able to run"


def test_submodules_have_their_commits(repository: Repository, tmp_path: Path) -> None:
    """Those of the commit, taken from what the user has fetched."""
    inner = Repository(tmp_path / "inner")
    inner.commit("one", part="1")
    repository.git("submodule", "--quiet", "add", str(inner.root), "inner")
    first = repository.commit("one")
    inner.commit("two", part="2")
    repository.git("-C", "inner", "pull", "-q")
    second = repository.commit("two")
    for commit, text in ((first, "1"), (second, "2")):
        with work_tree(repository.root, commit, tmp_path / "tree") as tree:
            assert (tree / "inner" / "part.py").read_text() == text
    assert len(repository.git("-C", "inner", "worktree", "list").splitlines()) == 1


def test_a_submodule_that_was_never_fetched_is_named(
    repository: Repository, tmp_path: Path
) -> None:
    """With the command that fetches it."""
    inner = Repository(tmp_path / "inner")
    inner.commit("one", part="1")
    repository.git("submodule", "--quiet", "add", str(inner.root), "inner")
    later = inner.commit("two", part="2")
    repository.git("update-index", "--cacheinfo", f"160000,{later},inner")
    repository.git("commit", "-q", "-m", "moved")
    commit = commit_of(repository.root, "HEAD")
    missing = rf"commit {later[:12]} of the submodule .*/inner but got none; "
    what = rf"{missing}fetch it with git -C .*/inner fetch"
    with (
        pytest.raises(RevisionError, match=what),
        work_tree(repository.root, commit, tmp_path / "t"),
    ):
        pass
    assert repository.trees() == 1


def test_a_revision_that_is_none_is_refused(repository: Repository) -> None:
    """With its name; an option for git is a name, too."""
    repository.commit("one")
    for name in ("nothing", "--help", "HEAD~1"):
        with pytest.raises(
            RevisionError, match=rf"a commit of .* but got REVISION='{name}' \(str\)"
        ):
            commit_of(repository.root, name)


def test_a_shallow_clone_says_how_it_gets_more(repository: Repository, tmp_path: Path) -> None:
    """What lies further back may exist."""
    repository.commit("one")
    repository.commit("two")
    shallow = tmp_path / "shallow"
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.root}", str(shallow))
    with pytest.raises(RevisionError, match="git fetch --unshallow"):
        commit_of(shallow, "HEAD~1")


def test_a_branch_of_a_remote_says_how_it_is_fetched(
    repository: Repository, tmp_path: Path
) -> None:
    """A checkout in CI has one commit; the command that the message gives is what helps."""
    main = repository.commit("one")
    repository.git("checkout", "-q", "-b", "change")
    repository.commit("two")
    clone = tmp_path / "clone"
    repository.git("clone", "-q", "--depth", "1", f"file://{repository.root}", str(clone))
    with pytest.raises(RevisionError) as refused:
        commit_of(clone, "origin/main")
    command = str(refused.value).rpartition("; ")[2]
    assert command == "git fetch origin main:refs/remotes/origin/main"
    repository.git("-C", str(clone), *command.split()[1:])
    assert commit_of(clone, "origin/main") == main


def test_a_folder_without_a_repository_is_refused(tmp_path: Path) -> None:
    """With what git says."""
    with pytest.raises(
        RevisionError, match=r"a script in a git repository but got .*not a git rep"
    ):
        repository_of(tmp_path)


def test_git_of_a_hook_does_not_mislead(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pre-push hook sets variables that name its own repository."""
    first = repository.commit("one", a="1")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    assert commit_of(repository_of(repository.root), "main") == first
