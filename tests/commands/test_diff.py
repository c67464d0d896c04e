"""A script is compared with itself in another commit or installation."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from repository import SCALED, TRAIN, Repository

from pytest_precision.__main__ import main
from pytest_precision._folder_owners import sweep

pytestmark = pytest.mark.usefixtures("servers")

DIFF = ["diff", "--", "src/train.py"]

SAME = "no tracked file differs from it: both sides are the same code\n"

LAUNCHED = """
import torch.distributed
torch.distributed.init_process_group("gloo")
assert torch.distributed.get_world_size() == 2
"""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Repository:
    """Return a repository with a script in `src`, whose second commit divides the loss by two."""
    made = Repository(tmp_path_factory.mktemp("original") / "mine")
    made.commit("one", src__train=TRAIN, src__scaling=SCALED.format(1.0))
    made.commit("two", src__scaling=SCALED.format(0.5))
    return made


@pytest.fixture
def repository(original: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a copy of that repository, in which a command is started."""
    made = Repository.copy_of(original, tmp_path / "mine")
    monkeypatch.chdir(made.root)
    return made


@pytest.mark.long(reason="It is the first of its worker, and starts the servers of both sides.")
def test_a_commit_with_other_numbers_is_told(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """The module that the script imports is the commit's; nothing is left of it."""
    folder = repository.root.parent / "report"
    assert main(["diff", "HEAD~1", "--report", str(folder), "--", "src/train.py"]) == 1
    out, err = capfd.readouterr()
    (cell,) = json.loads((folder / "report.json").read_text())["cells"]
    assert "\n-    return loss * 1.0\n+    return loss * 0.5" in cell["hunk"]
    (line,) = [line for line in cell["culprit"]["reference"]["source"] if line["number"] == 2]
    assert line["text"] == "    return loss * 1.0"
    assert out.startswith("src/train.py: this side against HEAD~1 (")
    assert "loss differs at step 1 after forward_backward" in out
    assert "first wrong value: aten.mul.Tensor at src/scaling.py:2: the reference multiplied" in out
    assert err.count("recording src/train.py") == 4
    assert "the two part at step 1: both are recorded again up to it, with all operations" in err
    assert repository.trees() == 1
    assert repository.git("status", "--short") == ""


def test_what_is_not_committed_is_compared_with_head(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """A refactoring is green; data that git does not track is there if it is named."""
    train = TRAIN.replace("lr=0.1", "lr=float(open('rate').read())")
    repository.commit("three", src__train=train)
    (repository.root / "rate").write_text("0.1")
    repository.write(src__scaling=SCALED.format("(1 / 2)"))
    with pytest.raises(SystemExit, match="2"):
        main(["diff", "--", "src/train.py"])
    said = capfd.readouterr().err
    assert "No such file or directory: 'rate'" in said
    assert "src/train.py failed on rank 0 with status 1: HEAD (" in said
    assert "unless --link PATH names them" in said
    assert main(["diff", "--link", "rate", "--report", "out", "--", "src/train.py"]) == 0
    out = capfd.readouterr().out
    assert "tensors in 2 steps agree; criterion bitwise" in out
    assert SAME not in out
    assert (repository.root / "out" / "report.json").exists()


def test_a_commit_that_is_checked_out_is_said_to_be_the_same_code(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """By whatever name; with a tracked file that differs, it is not, as above."""
    assert main(["diff", "main", "--", "src/train.py"]) == 0
    assert SAME in capfd.readouterr().out
    assert main(["diff", "main", "--json", "--", "src/train.py"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["outcome"] == "pass"
    assert SAME in err


def test_a_tolerance_keeps_the_values_that_it_needs(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to name the steps; where it is exceeded, the line is where the error grows.

    They may be so many that no word of a command line has room for each. What is within a
    tolerance is `compare`'s to say.
    """
    repository.commit("three", src__scaling=SCALED.format(1.001))
    criterion = ["--criterion", "norm(rel=0.01)", "--criterion", "loss=close(rtol=0.01, atol=0)"]
    assert main(["diff", "HEAD~1", "--steps", "60000", *criterion, "--", "src/train.py"]) == 1
    out = capfd.readouterr().out
    assert "the error grows most, ×" in out
    assert "of the values: aten.mul.Tensor at src/scaling.py:2" in out


def test_another_interpreter_runs_the_same_files(
    repository: Repository, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is a stranger's, in which this package is not installed, and runs one side alone.

    The two agree, since the line of a difference would be looked for by two recordings more.
    """
    ran = tmp_path / "ran"
    told = f"print(os.environ.get('WHOSE', 'ours'), file=open({str(ran)!r}, 'a'))\n"
    repository.write(src__train=f"import os\n{told}{TRAIN}")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nWHOSE=theirs exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    assert main(["diff", "--python", str(python), "--", "src/train.py"]) == 0
    assert f"this side against {python}: " in capfd.readouterr().out
    assert ran.read_text().split() == ["ours", "theirs"]


def test_an_interpreter_that_lacks_packages_is_refused(
    repository: Repository, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Before anything is recorded, with the command that installs them."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    with pytest.raises(SystemExit, match="2"):
        main(["diff", "--python", str(python), "--", "src/train.py"])
    said = capfd.readouterr().err
    assert "but got no torch, no numpy, no pytest, no xxhash, no safetensors; " in said
    assert f"{python} -m pip install torch numpy pytest xxhash safetensors" in said
    assert "recording" not in said


def test_a_script_that_does_not_repeat_is_told_first(
    repository: Repository, capfd: pytest.CaptureFixture[str]
) -> None:
    """The commit is not blamed for it, and not recorded."""
    repository.write(src__train=TRAIN.replace("manual_seed(0)", "seed()"))
    assert main(["diff", "--self", "--", "src/train.py"]) == 1
    out, err = capfd.readouterr()
    assert out.startswith("src/train.py: this side against itself, recorded again: ")
    assert "recording src/train.py: itself, recorded again" in err
    assert "HEAD" not in err


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["nosuch"], "expected a commit of .* but got REVISION='nosuch'"),
        (["--link", "nosuch"], "expected a path in .* but got --link=nosuch"),
        (["--link", "src"], "--link=src, which the commit has"),
    ],
)
def test_nonsense_is_refused(
    repository: Repository, words: list[str], what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With its value, before anything is recorded."""
    with pytest.raises(SystemExit, match="2"):
        main(["diff", *words, "--", "src/train.py"])
    said = capfd.readouterr().err
    assert re.search(what, said)
    assert "recording" not in said


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["held/x"], r"--link=held/x whose path lies in /.*leads through the link /.*/held; leave"),
        (["held/in/x"], r"path='held/in/x' \(str\), which leads through the link /.*/held"),
        (["held"], r"path='held' \(str\), which leads through the link /.*/held"),
        (["file/x"], "--link=file/x, below a file that the commit has; leave this --link out"),
        (["file/in/x"], "--link=file/in/x, below a file that the commit has"),
        (["own", "own/x"], r"path='own/x' \(str\), which leads through the link /.*/own"),
        ([".git/config"], r"path='.git/config' \(str\), which has '.git'"),
        (["."], r"path='.' \(str\), which has the part '.'"),
        (["../outside"], "expected a path in .* but got --link=../outside"),
    ],
)
def test_a_link_is_made_in_the_commits_folder_alone(
    repository: Repository,
    tmp_path: Path,
    words: list[str],
    what: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The commit may have a link, or a file, where a folder of the user's is now.

    A link below it would be made where that leads: in a folder of the user's that lies outside, or
    in data of his that another --link has put there. Nothing is made and nothing overwritten.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    (repository.root / "held").symlink_to(outside)
    repository.commit("four", file="")
    (repository.root / "file.py").rename(repository.root / "file")
    repository.commit("five")
    (repository.root / "held").unlink()
    (repository.root / "file").unlink()
    for name in ("held/in", "file/in", "own"):
        (repository.root / name).mkdir(parents=True)
        (repository.root / name / "x").touch()
        (repository.root / name).parent.joinpath("x").touch()
    links = [word for path in words for word in ("--link", path)]
    with pytest.raises(SystemExit, match="2"):
        main(["diff", *links, "--", "src/train.py"])
    assert re.search(what, capfd.readouterr().err)
    assert not [*outside.iterdir()]
    assert [path.name for path in (repository.root / "own").iterdir()] == ["x"]
    assert repository.trees() == 1


@pytest.mark.parametrize("part", ["src", "src/train.py"])
def test_a_commit_whose_script_lies_elsewhere_is_refused(
    repository: Repository, part: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A link of the commit may lead to the user's own files, which would agree with themselves.

    It is refused before anything is recorded.
    """
    there = repository.root / part
    present = there.with_name("present")
    there.rename(present)
    there.symlink_to(present)
    repository.commit("linked")
    there.unlink()
    present.rename(there)
    with pytest.raises(SystemExit, match="2"):
        main(["diff", "--", "src/train.py"])
    said = capfd.readouterr().err
    assert (
        f"expected a part of HEAD ({repository.git('rev-parse', 'HEAD')[:12]}) whose path" in said
    )
    assert f"which leads to {present}" in said
    assert "recording" not in said
    assert repository.trees() == 1


def expect_processes_of_their_own(repository: Repository, ran: Path) -> None:
    """Expect as many processes as runs of a file, half of them in the user's own folder."""
    lines = ran.read_text().splitlines()
    processes = {line.split()[0] for line in lines}
    assert len(processes) == len(lines) >= 4
    here = [line for line in lines if line.endswith(f" {repository.root}/src/scaling.py")]
    assert len(here) == len(lines) / 2
    assert repository.trees() == 1


@pytest.fixture
def ran(repository: Repository, tmp_path: Path) -> Path:
    """Have the script begin a process group; return the file in which each process is noted."""
    ran = tmp_path / "ran"
    told = f"import os\nprint(os.getpid(), __file__, file=open({str(ran)!r}, 'a'))\n"
    repository.commit("three", src__train=LAUNCHED + TRAIN, src__scaling=told + SCALED.format(1.0))
    repository.write(src__scaling=told + SCALED.format("(1 / 1)"))
    return ran


@pytest.mark.long(reason="Each of two ranks has a process for each side, which no server forks.")
def test_each_side_of_a_launch_has_processes_of_its_own(
    here_and_beside: Callable[[list[str]], None],
    repository: Repository,
    ran: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Two ranks, of which the first one is this process; both sides begin a process group."""
    here_and_beside(DIFF)
    assert "tensors in 2 steps agree" in capfd.readouterr().out
    expect_processes_of_their_own(repository, ran)


# Each rank ran its side's file, so that a difference is one as without a launch, above.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("factor", "status", "verdict"),
    [
        (0.25, 1, "loss differs at step 1 after forward_backward"),
        ("(1 / 1)", 0, "tensors in 2 steps agree"),
    ],
)
def test_each_side_has_processes_of_its_own_under_torchrun(
    repository: Repository, ran: Path, factor: object, status: int, verdict: str
) -> None:
    """Two ranks, whose store torchrun serves; both sides begin a process group."""
    scaling = repository.root / "src" / "scaling.py"
    scaling.write_text(scaling.read_text().replace("(1 / 1)", str(factor)))
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    words = [sys.executable, *launch, "-m", "pytest_precision", *DIFF]
    done = subprocess.run(words, capture_output=True, text=True, timeout=200)
    assert done.returncode == status
    assert verdict in done.stdout
    again = "Repeat with: torchrun --nproc-per-node 2 -m pytest_precision diff"
    assert (again in done.stdout) is bool(status)
    report = done.stderr.splitlines()[-12 if status else -1 :]
    assert any(verdict in line for line in report) is bool(status)  # torchrun's own
    expect_processes_of_their_own(repository, ran)


def runs(process: psutil.Process) -> bool:
    """Return whether a process has not ended; init may be slow to bury it."""
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


BISECT = ["bisect", "HEAD~1", "HEAD", "--", "src/train.py::test_it"]


@pytest.mark.parametrize(
    ("command", "number"),
    [
        (DIFF, signal.SIGKILL),
        (DIFF, signal.SIGINT),
        pytest.param(DIFF, signal.SIGHUP, marks=pytest.mark.nightly),
        (BISECT, signal.SIGKILL),
    ],
)
def test_a_process_that_is_ended_leaves_nothing(
    repository: Repository, tmp_path: Path, command: list[str], number: signal.Signals
) -> None:
    """Neither a work tree nor the script that it runs; nor what it made, if it gets to know.

    Otherwise its recordings go with the next command, however soon that comes.
    """
    slow = (
        "import os, pathlib, time\n"
        "pathlib.Path('starting').write_text(str(os.getpid()))\n"
        "os.rename('starting', 'started')\n"  # a file that is found has its text
        "time.sleep(600)\n"
    )
    repository.commit("three", src__train=slow)
    words = [sys.executable, "-m", "pytest_precision", *command]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    said = tmp_path / "stderr"  # a pipe would be held by the script, too, and be waited for
    with (
        said.open("w") as stderr,
        subprocess.Popen(words, stderr=stderr, env=environment) as process,
    ):
        try:
            until = time.monotonic() + 60
            while not (repository.root / "started").exists() and time.monotonic() < until:
                time.sleep(0.05)
            script = psutil.Process(int((repository.root / "started").read_text()))
            assert repository.trees() == 2
            process.send_signal(number)
            process.wait(timeout=60)
        finally:
            process.kill()  # the block waits for it without a limit
    assert "Traceback" not in said.read_text()
    until = time.monotonic() + 20
    while (runs(script) or repository.trees() > 1) and time.monotonic() < until:
        time.sleep(0.05)
    assert not runs(script)
    assert repository.trees() == 1
    if number == signal.SIGKILL:
        sweep(str(tmp_path))
    if number != signal.SIGKILL or command == DIFF:
        assert [*tmp_path.glob("pytest-precision-*")] == []
