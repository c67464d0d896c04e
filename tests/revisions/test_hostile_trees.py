"""A commit of others, checked out, reaches no folder but the command's own."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from repository import Repository

from pytest_precision.__main__ import main
from pytest_precision.errors import RevisionError
from pytest_precision.revisions.work_tree import TreeKeeper, work_tree

Entries = Callable[[Repository, Repository, str], list[tuple[str, str, str]]]

FILES = [".git", ".gitignore", "precious.py", "uncommitted.py"]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> tuple[Repository, Repository]:
    """Return what `other` and `mine` are copies of."""
    folder = tmp_path_factory.mktemp("originals")
    other = Repository(folder / "other")
    other.commit("one", precious="1")
    other.write(uncommitted="2")
    mine = Repository(folder / "mine")
    Repository(mine.root / "lib").commit("inner", part="1")
    mine.commit("one", train="print()\n")
    return other, mine


@pytest.fixture
def other(originals: tuple[Repository, Repository], tmp_path: Path) -> Repository:
    """Return another repository of the user's, with what was not committed."""
    return Repository.copy_of(originals[0], tmp_path / "other")


@pytest.fixture
def mine(originals: tuple[Repository, Repository], tmp_path: Path) -> Repository:
    """Return the repository with a submodule `lib`, as a folder that is a repository."""
    return Repository.copy_of(originals[1], tmp_path / "mine")


def expect_whole(other: Repository) -> None:
    """Assert that nothing of a repository is lost and nothing is added."""
    assert sorted(path.name for path in other.root.iterdir()) == FILES
    assert (other.root / "uncommitted.py").read_text() == "2"
    assert other.trees() == 1
    assert not (other.root / ".git" / "worktrees").exists()
    other.git("fsck", "--strict")


HOSTILE: dict[str, tuple[Entries, str]] = {
    "absolute": (
        lambda mine, other, k: [("160000", str(other.root), k)],
        r"path='/.*/other' \(str\), which is absolute",
    ),
    "up": (
        lambda mine, other, k: [("160000", "../other", k)],
        r"path='\.\./other' \(str\), which has the part '\.\.'",
    ),
    "up by a folder": (
        lambda mine, other, k: [("040000", "..", mine.raw_tree(("160000", "other", k)))],
        r"path='\.\./other' \(str\), which has the part '\.\.'",
    ),
    "up from within": (
        lambda mine, other, k: [("160000", "lib/../../other", k)],
        r"path='lib/\.\./\.\./other' \(str\), which has the part '\.\.'",
    ),
    "here": (lambda mine, other, k: [("160000", ".", k)], r"path='\.' \(str\)"),
    "empty": (lambda mine, other, k: [("160000", "", k)], "empty filename in tree entry"),
    "git": (lambda mine, other, k: [("160000", ".git", k)], r"path='\.git' \(str\), which has"),
    "git of a submodule": (
        lambda mine, other, k: [("160000", "lib/.Git/modules", k)],
        r"path='lib/\.Git/modules' \(str\), which has '\.Git'",
    ),
    "line": (
        lambda mine, other, k: [("160000", "lib\nworktree x", k)],
        r"path='lib\\nworktree x' \(str\), which has a control character",
    ),
    "twice": (
        lambda mine, other, k: [("160000", "lib", k), ("160000", "lib", k)],
        r"the submodule path='lib' \(str\) in the place of another entry",
    ),
    "below another": (
        lambda mine, other, k: [
            ("160000", "lib", k),
            ("040000", "lib", mine.raw_tree(("160000", "part", k))),
        ],
        r"the submodule path='lib/part' \(str\) in the place of another entry",
    ),
    "below a link": (
        lambda mine, other, k: [
            ("120000", "lib", mine.blob(str(other.root))),
            ("040000", "lib", mine.raw_tree(("160000", "part", k))),
        ],
        r"the submodule path='lib/part' \(str\) in the place of another entry",
    ),
    "file above": (
        lambda mine, other, k: [("100644", "../other/new", mine.blob("x"))],
        r"git reset: error: invalid path '\.\./other/new'",
    ),
    "file anywhere": (
        lambda mine, other, k: [("100644", f"{other.root}/new", mine.blob("x"))],
        r"git reset: error: invalid path '/.*/other/new'",
    ),
    "file of git": (
        lambda mine, other, k: [("100755", ".git/hooks/post-checkout", mine.blob("x"))],
        r"git reset: error: invalid path '\.git/hooks/post-checkout'",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_that_leads_elsewhere_is_refused(
    mine: Repository, other: Repository, tmp_path: Path, name: str
) -> None:
    """A tree may hold any name: git's own check tells, and clone and fetch take it.

    Joined to a folder, an absolute name is that other path, `..` leads up, `.git` is git's own, and
    a name below a link is where the link leads. The commit is refused with the name, before
    anything of it is used: nothing is added to the other repository, and nothing removed.
    """
    entries, fault = HOSTILE[name]
    commit = other.git("rev-parse", "HEAD")
    hostile = mine.commit_of_tree(mine.raw_tree(*entries(mine, other, commit)))
    own = tmp_path / "own"
    with pytest.raises(RevisionError, match=fault), work_tree(mine.root, hostile, own / "tree"):
        pass
    expect_whole(other)
    assert mine.trees() == 1
    assert not [*(mine.root / ".git").glob("worktrees/*")]
    assert not own.exists() or not [*own.iterdir()]


def test_a_hostile_submodule_is_refused_too(
    mine: Repository, other: Repository, tmp_path: Path
) -> None:
    """The trees of a submodule are others' as well; what was listed before it is not added."""
    lib = Repository.__new__(Repository)
    lib.root = mine.root / "lib"
    commit = other.git("rev-parse", "HEAD")
    inner = lib.commit_of_tree(lib.raw_tree(("160000", str(other.root), commit)))
    hostile = mine.commit_of_tree(mine.raw_tree(("160000", "lib", inner)))
    with (
        pytest.raises(RevisionError, match=r"path='/.*/other' \(str\), which is absolute"),
        work_tree(mine.root, hostile, tmp_path / "own" / "tree"),
    ):
        pass
    expect_whole(other)
    assert mine.trees() == lib.trees() == 1


def test_a_submodule_that_is_a_link_to_another_repository_is_refused(
    mine: Repository, other: Repository, tmp_path: Path
) -> None:
    """The user has a link where the commit has a submodule, as git refuses it, too.

    A link to what is no repository is a folder without the submodule's files, as it is without it.
    """
    commit = other.git("rev-parse", "HEAD")
    (mine.root / "link").symlink_to(other.root)
    hostile = mine.commit_of_tree(mine.raw_tree(("160000", "link", commit)))
    what = r"path='link' \(str\), which leads through the link /.*/mine/link"
    with (
        pytest.raises(RevisionError, match=what),
        work_tree(mine.root, hostile, tmp_path / "own" / "tree"),
    ):
        pass
    expect_whole(other)
    (mine.root / "link").unlink()
    (mine.root / "link").symlink_to(tmp_path)
    with work_tree(mine.root, hostile, tmp_path / "own" / "tree") as tree:
        assert not [*(tree / "link").iterdir()]
        assert not (tree / "link").is_symlink()


def test_a_gitfile_that_points_elsewhere_costs_the_other_nothing(
    mine: Repository, other: Repository, tmp_path: Path
) -> None:
    """A submodule's `.git` may be a file that names any repository, and a work tree is of that one.

    It is added in the command's own folder, and it is what goes. An empty `.git` would make git
    take the repository around it, which is refused.
    """
    commit = other.git("rev-parse", "HEAD")
    (mine.root / "part").mkdir()
    (mine.root / "part" / ".git").write_text(f"gitdir: {other.root}/.git\n")
    strange = mine.commit_of_tree(mine.raw_tree(("160000", "part", commit)))
    with work_tree(mine.root, strange, tmp_path / "own" / "tree") as tree:
        assert (tree / "part" / "precious.py").exists()
        assert other.trees() == 2
    expect_whole(other)
    (mine.root / "part" / ".git").unlink()
    (mine.root / "part" / ".git").mkdir()
    what = r"the submodule /.*/mine/part to be a repository but got a folder of /.*/mine; "
    with (
        pytest.raises(RevisionError, match=what),
        work_tree(mine.root, strange, tmp_path / "own" / "tree"),
    ):
        pass
    assert mine.trees() == 1


@pytest.mark.parametrize("replaced", ["tree", "own"])
def test_a_tree_that_was_replaced_by_a_link_is_left(
    mine: Repository, tmp_path: Path, replaced: str
) -> None:
    """Neither the user's own work tree, to which the link leads, is removed, nor git's note of it.

    What is removed is known by its name in the folder that was opened, not by a path to it.
    """
    users = tmp_path / "users"
    mine.git("worktree", "add", "-q", "--detach", str(users / "tree"))
    (users / "tree" / "uncommitted").write_text("2")
    own = tmp_path / "own"
    with work_tree(mine.root, mine.git("rev-parse", "HEAD"), own / "tree") as tree:
        victim, link = (users / "tree", tree) if replaced == "tree" else (users, own)
        link.rename(tmp_path / "moved")
        link.symlink_to(victim)
    assert (users / "tree" / "uncommitted").read_text() == "2"
    assert f"worktree {users}/tree" in mine.git("worktree", "list", "--porcelain")
    assert link.is_symlink()
    assert (users / "tree" / "train.py").exists()


def test_what_was_there_before_is_not_taken(mine: Repository, tmp_path: Path) -> None:
    """A folder, or a work tree of the user's, in the place of the new one stays, with its note."""
    own = tmp_path / "own"
    mine.git("worktree", "add", "-q", "--detach", str(own / "tree"))
    with (
        pytest.raises(RevisionError, match="File exists: 'tree'"),
        work_tree(mine.root, mine.git("rev-parse", "HEAD"), own / "tree"),
    ):
        pass
    assert (own / "tree" / "train.py").exists()
    assert mine.trees() == 2


def test_a_temporary_folder_behind_a_link(mine: Repository, tmp_path: Path) -> None:
    """TMPDIR may be a link; git notes the path that it leads to, and the note goes."""
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with work_tree(mine.root, mine.git("rev-parse", "HEAD"), tmp_path / "link" / "tree") as tree:
        assert (tree / "train.py").exists()
        assert mine.trees() == 2
    assert not [*(tmp_path / "real").iterdir()]
    assert mine.trees() == 1


def test_a_keeper_that_is_gone_is_told(mine: Repository, tmp_path: Path) -> None:
    """With its end, where no work tree can be added any more; nothing waits for it."""
    with TreeKeeper(tmp_path) as keeper:
        os.killpg(keeper._process.pid, signal.SIGKILL)
        with pytest.raises(RevisionError, match=r"keeps work trees of /.* its end: status -9"):
            keeper.add(mine.root, mine.git("rev-parse", "HEAD"), "tree")
    assert mine.trees() == 1


@pytest.mark.parametrize("command", ["diff", "bisect"])
def test_a_command_leaves_the_other_repository_whole(
    mine: Repository,
    other: Repository,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
) -> None:
    """With status 2, the name of the entry and the next step."""
    commit = other.git("rev-parse", "HEAD")
    mine.commit_of_tree(mine.raw_tree(("160000", str(other.root), commit)))
    monkeypatch.chdir(mine.root)
    revisions = ["strangers"] if command == "diff" else ["strangers", "main"]
    with pytest.raises(SystemExit) as ended:
        main([command, *revisions, "--steps", "2", "--", "train.py"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert f"got path='{other.root}' (str), which is absolute; the commit cannot be" in said
    expect_whole(other)
    assert mine.git("worktree", "list").count(os.linesep) == 0
