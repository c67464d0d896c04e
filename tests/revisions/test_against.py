"""Each side of each check is compared with itself in another commit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest
import xxhash._xxhash
from repository import Repository
from sessions import LAYOUTS, MORE, cell_of, cells, command, run, run_here

COMPILED = Path(xxhash._xxhash.__file__)
"""A module that can be imported on its own, from any folder."""

HELPERS = "def decayed(beta):\n    return beta\n"

HOOKS = """
from torch.nn.functional import linear


def first(module, args, output):
    return {first}


def second(module, args, output):
    return {second}
"""

ROUNDED = """
import hooks
from torch import nn
from pytest_precision import layouts


def made(workload, cell, hook):
    engine = layouts.adamw(workload, cell)
    for module in engine.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(getattr(hooks, hook))
    return engine


def rounding(workload, cell):
    return made(workload, cell, "first")


def rounding_too(workload, cell):
    return made(workload, cell, "first")


def summing(workload, cell):
    return made(workload, cell, "second")


def summing_too(workload, cell):
    return made(workload, cell, "second")
"""


class Moved(NamedTuple):
    """A session that compared a repository with its commit.

    Attributes:
        repository: it.
        status: what git said of it before the session.
        printed: what the session printed.
        found: each test's entry in the report.
    """

    repository: Repository
    status: str
    printed: str
    found: dict[str, dict[str, Any]]


def made_at(root: Path) -> Repository:
    """Return a repository with a `src` layout and one commit."""
    made = Repository(root)
    ini = "[pytest]\npythonpath = src lib\naddopts = --import-mode=importlib\n"
    (made.root / "pytest.ini").write_text(ini)
    (made.root / ".gitignore").write_text("__pycache__/\n*.so\nreport/\n")
    made.commit(
        "one",
        src__mine__layouts=LAYOUTS.format(own=0.9, shared=0.95),
        src__rounded=ROUNDED,
        src__hooks=HOOKS.format(first="output", second="output"),
        lib__helpers=HELPERS,
        lib__moved=MORE.format(name="moved"),
        src__compiled=MORE.format(name="compiled") + "import _xxhash\n",
    )
    return made


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository with a `src` layout and one commit."""
    return made_at(tmp_path / "mine")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory) -> Moved:
    """Compare a repository in which code moved in each way with its commit, in one session."""
    repository = made_at(tmp_path_factory.mktemp("moved") / "mine")
    for name in ("moved", "helpers"):  # the module has the same name in another folder
        (repository.root / "lib" / f"{name}.py").rename(repository.root / "src" / f"{name}.py")
    (repository.root / "src" / COMPILED.name).write_bytes(COMPILED.read_bytes())
    added = "\n\ndef added(workload, cell):\n    return made(workload, cell, 0.9)\n"
    repository.write(
        src__mine__layouts=LAYOUTS.format(own=0.8, shared=0.96) + added,
        src__mine__fresh=MORE.format(name="fresh"),
        src__hooks=HOOKS.format(
            first="output + (output.bfloat16().float() - output).detach()",
            second="linear(args[0][..., ::2], module.weight[:, ::2], module.bias)"
            " + linear(args[0][..., 1::2], module.weight[:, 1::2])",
        ),
        tests__test_steady=cell_of("steady", "nine", "moved:moved"),
        tests__test_lost=cell_of("lost", "own", "nine"),
        tests__test_gained=cell_of("gained", "own", "eight"),
        tests__test_apart=cell_of("apart", "nine", "eight"),
        tests__test_drift=cell_of("drift", "shared", "shared_too"),
        tests__test_torn=cell_of("torn", "torn", "nine", ranks=2),
        tests__test_further=cell_of("further", "torn_further", "nine", ranks=2),
        tests__test_added=cell_of("added", "added", "nine"),
        tests__test_fresh=cell_of("fresh", "nine", "mine.fresh:fresh"),
        tests__test_compiled=cell_of("compiled", "nine", "compiled:compiled"),
        tests__test_rounding=cell_of("rounding", "rounded:rounding", "rounded:rounding_too"),
        tests__test_summing=cell_of("summing", "rounded:summing", "rounded:summing_too"),
    )
    status = repository.git("status", "--short")
    done = run(repository, "--precision-against=HEAD")
    return Moved(repository, status, done.stdout, cells(repository))


@pytest.mark.long(reason="One session moves and drifts in each way, in ranks of two commits.")
def test_each_way_to_move_has_its_verdict(moved: Moved) -> None:
    """What is not committed is this side; neither it nor the index is touched."""
    repository, found = moved.repository, moved.found
    assert repository.git("status", "--short") == moved.status
    assert repository.trees() == 1
    then = f"HEAD ({repository.git('rev-parse', 'HEAD'):.12})"
    outcomes = {name.removeprefix("test_"): cell["outcome"] for name, cell in found.items()}
    assert outcomes == {
        "steady": "pass",
        "lost": "fail",
        "gained": "fail",
        "apart": "fail",
        "drift": "drift",
        "torn": "fail",
        "further": "fail",
        "added": "skip",
        "fresh": "skip",
        "compiled": "error",
        "rounding": "drift",
        "summing": "drift",
    }, moved.printed
    reasons = {name.removeprefix("test_"): cell["reason"] for name, cell in found.items()}
    hyper = (
        "hyper differs before the first step: betas.1 of reader.weight is 0.8 on rank 0, not 0.9"
    )
    assert f"agreement was lost since {then}: the candidate moved: {hyper}" in reasons["lost"]
    assert f"the candidate moved since {then}, the reference did not: {hyper}" in reasons["gained"]
    assert reasons["drift"].startswith(
        f"fp32-train2: drift: both sides moved since {then} and still"
    )
    assert f"mine.layouts:added is not there in {then}" in reasons["added"]
    assert f"mine.fresh:fresh is not there in {then}" in reasons["fresh"]
    assert "module _xxhash, which is compiled here into" in reasons["compiled"]
    assert "-o precision_against_build=COMMAND" in reasons["compiled"]
    assert found["test_gained"]["gate"] == "moved"
    assert any(
        f"At {then} the two sides differed" in line for line in found["test_gained"]["details"]
    )
    assert any("neither side has moved" in line for line in found["test_apart"]["details"])
    assert found["test_torn"]["then"]["moved"] == {}
    assert "rank 1 and rank 0 hold different bits" in reasons["torn"]
    assert any("neither side has moved" in line for line in found["test_torn"]["details"])
    further = "differs before the first step, and its ranks hold different bits of one tensor at "
    assert further in found["test_further"]["then"]["moved"]["candidate"]
    assert found["test_drift"]["gate"] == "drifted"
    assert {*found["test_drift"]["then"]["moved"]} == {"candidate", "reference"}
    assert found["test_steady"]["then"] == {"name": then, "moved": {}, "environment": {}}
    assert "--precision-against=HEAD" in found["test_lost"]["repeat"]


@pytest.mark.parametrize("workers", [(), pytest.param(("-n2",), marks=pytest.mark.nightly)])
def test_a_build_makes_compiled_modules_of_the_commit(
    repository: Repository, workers: tuple[str, ...]
) -> None:
    """In its work tree, before anything runs; workers of xdist share it."""
    (repository.root / "src" / COMPILED.name).write_bytes(COMPILED.read_bytes())
    repository.write(
        tests__test_compiled=cell_of("compiled", "nine", "compiled:compiled"),
        tests__test_own=cell_of("own", "own", "nine"),
    )
    build = f"cp {COMPILED} src/ && basename $PWD >> {repository.root}/built"
    options = ("-o", f"precision_against_build={build}", *workers)
    done = run(repository, "--precision-against=HEAD", *options)
    assert {cell["outcome"] for cell in cells(repository).values()} == {"pass"}, done.stdout
    assert (repository.root / "built").read_text() == f"{repository.git('rev-parse', 'HEAD')}\n"
    assert repository.trees() == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--precision-against=nowhere"], "but got REVISION='nowhere' (str)"),
        (["--precision-against=HEAD", "-o", "precision_against_build=exit 3"], "status 3"),
        (["--precision-against=HEAD", "--precision-ranks=inline"], "ranks in separate processes"),
        (["--precision-against-python", sys.executable], "write --precision-against-python=PATH"),
        (["--precision-against-python=/nowhere"], "a Python interpreter that starts but got"),
    ],
)
def test_what_cannot_be_compared_ends_the_session_first(
    repository: Repository, pytester: pytest.Pytester, options: list[str], said: str
) -> None:
    """With the next step, and without a work tree."""
    repository.write(tests__test_own=cell_of("own", "own", "nine"))
    done = run_here(repository, pytester, *options)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert said in str(done.stderr)
    assert repository.trees() == 1


def test_without_git_and_under_a_launcher_it_is_a_usage_error(
    repository: Repository, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher's line names what compares a script of several ranks."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    launched = {"TORCHELASTIC_RUN_ID": "a", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    with monkeypatch.context() as patch:
        for name, value in (place | launched).items():
            patch.setenv(name, value)
        done = run_here(repository, pytester, "--precision-against=HEAD")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "-m pytest_precision diff REVISION -- train.py" in str(done.stderr)
    (repository.root / ".git").rename(repository.root / "gone")
    done = run_here(repository, pytester, "--precision-against=HEAD")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert "not a git repository" in str(done.stderr)


def test_a_drift_is_held_to_fp64(moved: Moved) -> None:
    """What rounds more than it did is less accurate; a sum in another order is not."""
    found = {name: moved.found[name] for name in ("test_rounding", "test_summing")}
    ratios = {
        (name, kind): own["ratio"]
        for name, cell in found.items()
        for kind, own in cell["then"]["accuracy"]["candidate"].items()
    }
    assert ratios["test_rounding", "gradients"] > 100
    assert ratios["test_rounding", "updates"] > 100
    assert 0.5 < ratios["test_summing", "gradients"] < 2
    lines = {
        name: [line for line in cell["details"] if "gradients of the first step" in line]
        for name, cell in found.items()
    }
    assert "Both sides' gradients" in lines["test_rounding"][0]
    assert "The new ones are less accurate" in lines["test_rounding"][0]
    assert "The new ones are as accurate as the old ones" in lines["test_summing"][0]


# SIGTERM ends pytest as SIGKILL does: it has no handler of it. After SIGINT, it ends as a session
# does, and leaves no tree; CI interrupts `diff` in the same place.
@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, marks=pytest.mark.nightly),
        signal.SIGKILL,
    ],
)
def test_an_interrupted_session_leaves_nothing(
    repository: Repository, tmp_path: Path, number: signal.Signals
) -> None:
    """Neither a work tree nor a process, also where the session cannot clean up itself."""
    helpers = "import pathlib, time\ndef decayed(beta):\n    pathlib.Path({!r}).touch()\n"
    waits = tmp_path / "waits"
    slow = helpers.format(str(waits)) + "    time.sleep(600)\n"
    repository.commit("two", lib__helpers=slow)
    repository.write(lib__helpers=HELPERS, tests__test_own=cell_of("own", "own", "nine"))
    session = subprocess.Popen(
        command("--precision-against=HEAD"),
        cwd=repository.root,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    until = time.monotonic() + 300
    while not waits.exists():
        assert session.poll() is None
        assert time.monotonic() < until
        time.sleep(0.1)
    assert repository.trees() == 2
    children = psutil.Process(session.pid).children(recursive=True)
    assert len(children) > 3  # what removes the tree, the host, two fork servers, a rank
    os.kill(session.pid, number)
    session.wait(60)
    _, alive = psutil.wait_procs(children, 60)
    assert alive == []
    assert repository.trees() == 1
