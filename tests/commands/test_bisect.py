"""The commit that changed the numbers of a script is found, and what it changed."""

from __future__ import annotations

from pathlib import Path

import pytest
from repository import SCALED, TRAIN, Repository

from pytest_precision.__main__ import main
from pytest_precision.commands.bisect import bisected
from pytest_precision.errors import RevisionError

pytestmark = pytest.mark.usefixtures("servers")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a repository of three commits, of which the second changes the numbers."""
    made = Repository(tmp_path / "mine")
    monkeypatch.chdir(made.root)
    made.commit("first", train=TRAIN, scaling=SCALED.format(1.0))
    made.commit("guilty", scaling=SCALED.format(0.5))
    made.commit("last", scaling=SCALED.format("(1 / 2)"))
    return made


@pytest.mark.long(reason="Each commit of the search is recorded, again for its line, and compared.")
def test_the_commit_is_found(repository: Repository, capfd: pytest.CaptureFixture[str]) -> None:
    """With what it changed, and in which line; nothing is left."""
    guilty = repository.git("rev-parse", "HEAD~1")
    assert main(["bisect", "--steps", "1", "HEAD~2", "HEAD", "--", "train.py"]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"first commit with other numbers: {guilty[:7]} a, ")
    assert "loss differs at step 1 after forward_backward" in out
    line = (
        "first wrong value: aten.mul.Tensor at scaling.py:2: the reference multiplied by 1.0 here"
    )
    assert f"{line}, the candidate by 0.5" in out
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


class Contents:
    """Judges commits by a file of theirs: good with `0`, bad with `1`, else not to be judged."""

    def __init__(self, repository: Repository) -> None:
        self.judged: list[str] = []
        self._repository = repository

    def is_good(self, commit: str) -> bool:
        """Return whether the file says 0."""
        self.judged.append(commit)
        text = self._repository.git("show", f"{commit}:state.py")
        if text not in "01":
            raise RevisionError(f"{text} cannot be judged")
        return text == "0"


@pytest.mark.parametrize("change", [1, 7, 14, 15])
def test_few_commits_are_tested(tmp_path: Path, change: int) -> None:
    """Half of what is left goes with each, also where histories were merged; none is asked twice.

    No ref is written and no bisection of the user's is touched.
    """
    made = Repository(tmp_path / "merged")
    line = [made.commit("0", state="0")]
    for k in range(1, 16):
        line.append(made.commit(str(k), state=str(int(k >= change)), own=str(k)))
        if k % 5 == 0:
            made.git("checkout", "-q", "-b", f"side{k}", line[-2])
            made.commit("side", **{f"side{k}": "x"})
            made.git("checkout", "-q", "main")
            made.git("merge", "-q", "--no-edit", f"side{k}")
    refs = made.git("for-each-ref")
    contents = Contents(made)
    lines: list[str] = []
    guilty = bisected(made.root, contents, line[0], made.git("rev-parse", "main"), lines.append)
    assert guilty == line[change]
    assert len(lines) == len(contents.judged)
    assert f" commits between {line[0][:12]} and " in lines[0]
    assert lines[0].endswith(": 5 to run at most")
    assert len({*contents.judged}) == len(contents.judged) <= 6
    assert made.git("for-each-ref") == refs


def test_histories_that_parted(tmp_path: Path) -> None:
    """Where they parted is tested first; if it is bad, the change lies on the way to GOOD.

    So it does where GOOD comes after BAD. Skipped commits are named with the one after them.
    """
    made = Repository(tmp_path / "parted")
    fork = made.commit("fork", state="0")
    guilty = made.commit("guilty", state="1")
    bad = made.commit("bad", more="1")
    made.git("checkout", "-q", "-b", "side", fork)
    good = made.commit("good", side="1")
    assert bisected(made.root, Contents(made), good, bad) == guilty
    made.git("checkout", "-q", "-b", "mended", bad)
    mended = made.commit("mended", state="0")
    made.git("checkout", "-q", "-b", "further", bad)
    further = made.commit("further", other="1")
    for later in (bad, further):
        what = f"the numbers of GOOD where it parted from BAD, at {bad[:12]} but got others; they"
        with pytest.raises(RevisionError, match=what):
            bisected(made.root, Contents(made), mended, later)
    made.git("checkout", "-q", "-b", "unclear", fork)
    unclear = made.commit("unclear", state="?")
    last = made.commit("last", state="1")
    what = f"several that may be it, {last[:12]}, {unclear[:12]}; some of them were skipped"
    with pytest.raises(RevisionError, match=what):
        bisected(made.root, Contents(made), fork, last)


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
