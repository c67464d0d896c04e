"""The commit that changed the numbers of a script is found, and what it changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from repository import SCALED, TRAIN, Repository

from pytest_precision.__main__ import main


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a repository of three commits, of which the second changes the numbers."""
    made = Repository(tmp_path / "mine")
    monkeypatch.chdir(made.root)
    made.commit("first", train=TRAIN, scaling=SCALED.format(1.0))
    made.commit("guilty", scaling=SCALED.format(0.5))
    made.commit("last", scaling=SCALED.format("(1 / 2)"))
    return made


def test_the_commit_is_found(repository: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    """With what it changed, and nothing is left."""
    guilty = repository.git("rev-parse", "HEAD~1")
    assert main(["bisect", "--steps", "1", "HEAD~2", "HEAD", "--", "train.py"]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"first commit with other numbers: {guilty[:7]} a, ")
    assert "loss differs at step 1 after forward_backward" in out
    assert repository.trees() == 1
    assert repository.git("status", "--short") == ""


@pytest.mark.nightly
def test_commits_that_cannot_be_told_apart_are_named(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """The change is in a commit in which the script fails, or in the one after it."""
    repository.git("reset", "-q", "--hard", "HEAD~2")
    broken = repository.commit("broken", scaling="raise ValueError('no code')")
    guilty = repository.commit("guilty", scaling=SCALED.format(0.5))
    with pytest.raises(SystemExit, match="2"):
        main(["bisect", "--steps", "1", "HEAD~2", "HEAD", "--", "train.py"])
    said = capfd.readouterr().err
    assert f"{broken[:12]} is skipped: train.py failed on rank 0 with status 1" in said
    assert f"got one of {guilty[:12]}, {broken[:12]}" in said
    assert repository.trees() == 1


def test_equal_ends_are_refused(repository: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    """There is nothing to find between them."""
    with pytest.raises(SystemExit, match="2"):
        main(["bisect", "--steps", "1", "HEAD~1", "HEAD", "--", "train.py"])
    assert "expected other numbers at HEAD than at HEAD~1 but got" in capfd.readouterr().err
