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
    """With what it changed, and in which line; nothing is left."""
    guilty = repository.git("rev-parse", "HEAD~1")
    assert main(["bisect", "--steps", "1", "HEAD~2", "HEAD", "--", "train.py"]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"first commit with other numbers: {guilty[:7]} a, ")
    assert "loss differs at step 1 after forward_backward" in out
    line = "aten.mul.Tensor at scaling.py:2: the reference multiplied by 1.0 here, this by 0.5"
    assert f"first wrong value: {line}" in out
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
    assert f"got several that may be it, {guilty[:12]}, {broken[:12]}" in said
    assert repository.trees() == 1


MINE = """
from pytest_precision import layouts


def made(workload, cell):
    engine = layouts.adamw(workload, cell)
    for group in engine.optimizer.param_groups:
        group["weight_decay"] = {}
    return engine


def made_too(workload, cell):
    return made(workload, cell)
"""

TEST = """
import pytest
from mine import made, made_too
from pytest_precision import unchecked, workloads


@pytest.mark.precision_matrix(precision=["fp32"], sequence=["train2"])
def test_it(parity):
    other = unchecked(reason="another decay than the workload's")
    parity.check(made, made_too, workload=workloads.mlp, oracle=other)
"""


@pytest.mark.nightly
def test_the_commit_that_moved_a_test_is_found(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """It runs as it is here, a test that no commit has; how both sides drifted is said."""
    (repository.root / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    good = repository.commit("with a layout", mine=MINE.format(0.1))
    guilty = repository.commit("guilty again", mine=MINE.format(0.2))
    repository.commit("last", scaling=SCALED.format(1.0))
    repository.write(test_it=TEST)
    assert main(["bisect", good, "HEAD", "--", "test_it.py::test_it"]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"first commit with other numbers: {guilty[:7]} a, ")
    moved = "weight_decay of reader.weight is 0.2 on rank 0, not 0.1"
    assert f"drift: both sides moved since {good[:12]}" in " ".join(out.split())
    assert moved in " ".join(out.split())
    assert repository.trees() == 1


def test_a_test_is_refused_what_scripts_are_recorded_with(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """By name, before anything runs."""
    repository.write(test_it=TEST)
    with pytest.raises(SystemExit, match="2"):
        main(["bisect", "--see", "grad", "HEAD~1", "HEAD", "--", "test_it.py::test_it"])
    assert (
        "expected no --see, which is for scripts, but got it with a test; leave it out"
        in capfd.readouterr().err
    )


def test_equal_ends_are_refused(repository: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    """There is nothing to find between them."""
    with pytest.raises(SystemExit, match="2"):
        main(["bisect", "--steps", "1", "HEAD~1", "HEAD", "--", "train.py"])
    assert "expected other numbers at HEAD than at HEAD~1 but got" in capfd.readouterr().err
