"""A path of others is held against the folder in which it must lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_precision._within import path_within
from pytest_precision.errors import RevisionError


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("", "which is empty"),
        ("/etc", "which is absolute"),
        ("//a", "which is absolute"),
        ("..", "which has the part '..'"),
        ("a/../../b", "which has the part '..'"),
        ("./a", "which has the part '.'"),
        ("a//b", "which has the part ''"),
        ("a/", "which has the part ''"),
        (".git/hooks", "which has '.git', where git keeps a repository"),
        ("a/.GIT", "which has '.GIT', where git keeps a repository"),
        ("a\0b", "which has a control character"),
        ("a\nb", "which has a control character"),
        ("out/a", "which leads through the link .*/out"),
        ("sub/in/a", "which leads through the link .*/sub/in"),
        ("sub/in", "which leads through the link .*/sub/in"),
        ("nowhere", "which leads through the link .*/nowhere"),
    ],
)
def test_a_path_that_may_lie_elsewhere_is_refused(tmp_path: Path, name: str, fault: str) -> None:
    """The text alone tells: absolute, empty, up, git's own folder, control characters.

    Of what is there, no part may be a link, the last one neither, also where it leads to the same
    folder or nowhere: whoever writes or removes there would follow it. The message has the text,
    the fault and the next step, and is an error of the caller's type.
    """
    (tmp_path / "sub").mkdir()
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "sub" / "in").symlink_to(tmp_path / "sub")
    (tmp_path / "nowhere").symlink_to("missing")
    with pytest.raises(RevisionError, match=f"expected a thing whose .*{fault}; leave it out"):
        path_within(tmp_path, name, "a thing", advice="leave it out", error=RevisionError)


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a/b..", ".gitmodules", "sub/new/é \udcff"])
def test_a_path_in_the_folder_is_joined(tmp_path: Path, name: str) -> None:
    """It need not exist, and the folder itself may be reached through a link, as TMPDIR may be."""
    (tmp_path / "real" / "sub").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert path_within(tmp_path / "link", name, "a thing") == tmp_path / "link" / name


def test_a_link_that_stays_in_the_folder_may_be_followed(tmp_path: Path) -> None:
    """Where the caller says so, as of a script that a commit has as a link; one that leads out not.

    A link to another link is followed to its end.
    """
    (tmp_path / "inside").mkdir()
    folder = tmp_path / "inside"
    (folder / "real").mkdir()
    (folder / "link").symlink_to("real")
    (folder / "out").symlink_to("twice")
    (folder / "twice").symlink_to(tmp_path)
    assert path_within(folder, "link/x", "a thing", follow=True) == folder / "link" / "x"
    for name in ("out/x", "out/inside2", "twice"):
        with pytest.raises(ValueError, match=rf"which leads to {tmp_path}"):
            path_within(folder, name, "a thing", follow=True)
    with pytest.raises(ValueError, match=r"which has the part '\.\.'"):
        path_within(folder, "link/../../x", "a thing", follow=True)
