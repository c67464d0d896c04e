"""A run that is forked from a server is the run of a new interpreter, to the last byte."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from repository import Repository

from pytest_precision.revisions.installation import Installation, link_package
from pytest_precision.revisions.run_servers import ForkedRun, RunServers, Seat, run_servers

FUNCTION = "pytest_precision.__main__:main"
HERE = Path(__file__).parent
SCRIPTS = HERE.parents[1] / "fixtures" / "scripts"

PACKAGE = "FOLDER OF THE PACKAGE"

STEADY = """
import random, numpy, torch
random.seed(0), numpy.random.seed(0), torch.use_deterministic_algorithms(True)
"""
"""Begins a script whose recording is compared. Generators without a seed, and memory that nobody
has written yet, are those of no other run, also of a new interpreter; a recording holds both."""

OF_ONE_RUN = {"date": "", "digest": "", "files": {}}
"""Entries of `recording.json` that say when it was made, or repeat what the files hold."""

Places = tuple[Path, Path] | None


class Ended:
    """How a run has ended: its status, what it said, and what it recorded."""

    def __init__(self, status: int, said: str, folder: Path, package: str) -> None:
        self.status = status
        self.said = said.replace(package, PACKAGE)
        self.files = {path.name: path.read_bytes() for path in folder.glob("*")}
        manifest = self.files.pop("recording.json", b"{}").decode().replace(package, PACKAGE)
        self.manifest = json.loads(manifest) | OF_ONE_RUN


Ways = Callable[..., tuple[Ended, Ended]]


@pytest.fixture(scope="module")
def servers() -> Iterator[RunServers]:
    """Servers that all runs of this file share."""
    with run_servers() as found:
        yield found


@contextmanager
def streams_into(said: Path) -> Iterator[None]:
    """Have this process's standard input be empty, and its standard error go to a file."""
    before = [(standard, os.dup(standard)) for standard in (0, 2)]
    try:
        for path, flags, standard in (
            (os.devnull, os.O_RDONLY, 0),
            (str(said), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 2),
        ):
            opened = os.open(path, flags)
            os.dup2(opened, standard)
            os.close(opened)
        yield
    finally:
        for standard, kept in before:
            os.dup2(kept, standard)
            os.close(kept)


@pytest.fixture
def both(servers: RunServers, tmp_path: Path) -> Ways:
    """Record a script in a new interpreter and in a fork; return how each has ended."""
    package = link_package(tmp_path / "plugin")
    out = tmp_path / "out"

    def ended(side: Installation, words: list[str], folder: Path, forked: bool) -> Ended:
        said = tmp_path / "said"
        with streams_into(said):
            if forked:
                found = servers.start("candidate", side, FUNCTION, words, folder)
                assert isinstance(found, ForkedRun)
                status = found.wait()
            else:
                new = [*side.words(package, FUNCTION), *words]
                status = subprocess.run(new, cwd=folder, stdout=2).returncode
        own = str(servers.package_of("candidate") if forked else package)
        done = Ended(status, said.read_text(), out, own)
        said.unlink()
        shutil.rmtree(out)
        return done

    def made(script: Path, *arguments: str, options: str, places: Places = None) -> Any:
        side = Installation("", Path(sys.executable), places)
        words = ["record", "--quiet", "--out", str(out), *options.split()]
        words += ["--moved", *map(str, places)] if places else []
        words += ["--", script.name, *arguments]
        return tuple(ended(side, words, script.parent, forked) for forked in (False, True))

    return made


def expect_equal(new: Ended, forked: Ended, status: int = 0) -> None:
    """Assert that two runs have ended alike, as they should."""
    assert new.said == forked.said
    assert new.status == forked.status == status
    assert new.manifest == forked.manifest
    assert new.files == forked.files


def test_a_fork_finds_what_a_new_interpreter_finds(both: Ways, tmp_path: Path) -> None:
    """Of the process and of torch, also where the code is a commit's; but it draws what it draws.

    Random numbers without a seed are those of no other run. Each file of the recording has the same
    bytes, also the log of operations.
    """
    mine = Repository(tmp_path / "mine")
    mine.commit("one", run=(HERE / "surroundings_of_run.py").read_text())
    tree = tmp_path / "tree"
    mine.git("worktree", "add", "-q", str(tree))
    drawn = []
    options = "--steps 2 --values 0-2 --lines"
    runs = both(tree / "run.py", options=options, places=(mine.root, tree))
    started = []
    for run in runs:
        line, _, run.said = run.said.partition("\n")
        told = json.loads(line)
        drawn += told["drawn"]
        started.append(told["started"])
    new, forked = started
    assert new.keys() == forked.keys()
    assert {key: (new[key], forked[key]) for key in new if new[key] != forked[key]} == {}
    assert len({*drawn}) == 4
    expect_equal(*runs)
    assert len(runs[1].files) > 2


NIGHTLY = pytest.mark.nightly


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("casts_kept.py --right", "--steps 2 --values 0-2 --lines"),
        ("rate_by_module.py --fast", "--steps 3 --see grad"),
        ("frozen_when_listed.py --right", "--every 2"),
        ("alias_of_main.py", "--steps 2 --lines 2"),
    ],
)
def test_a_fork_records_what_a_new_interpreter_records(
    both: Ways, tmp_path: Path, words: str, options: str
) -> None:
    """Each file of the recording has the same bytes, also the log of operations."""
    script, *arguments = words.split()
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    steady = tmp_path / "scripts" / script
    steady.write_text(STEADY + steady.read_text())
    runs = both(steady, *arguments, options=options)
    expect_equal(*runs)
    assert len(runs[1].files) > 1


ENDINGS = {
    "interrupted": ("raise KeyboardInterrupt", -signal.SIGINT),
    "exit": ("import atexit; atexit.register(print, 'left'); raise SystemExit(3)", 3),
    "words": ("raise SystemExit('reason')", 1),
    "raises": ("raise ValueError('planted')", 1),
    "killed": ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
    "thread": ("import threading; threading.Timer(0.2, print, ['late']).start(); 1 / 0", 1),
}


@pytest.mark.parametrize(
    "ending",
    [
        name if name in ("exit", "interrupted") else pytest.param(name, marks=NIGHTLY)
        for name in ENDINGS
    ],
)
def test_a_fork_ends_as_a_new_interpreter_ends(both: Ways, tmp_path: Path, ending: str) -> None:
    """With its status or signal, its last words, and what was to be done at the end."""
    code, status = ENDINGS[ending]
    script = tmp_path / "ends.py"
    script.write_text(f"print('begun')\n{code}\n")
    new, forked = both(script, options="--steps 1")
    expect_equal(new, forked, status)
    assert forked.said.startswith("begun")


HERE_AND_NOW = Installation("", Path(sys.executable))


def say(
    servers: RunServers,
    folder: Path,
    code: str,
    seat: Seat = "candidate",
    side: Installation = HERE_AND_NOW,
) -> str:
    """Return what a fork says that runs some code before it could train."""
    (folder / "says.py").write_text(f"{code}\nraise SystemExit(4)\n")
    words = ["record", "--out", str(folder / "none"), "--", "says.py"]
    said = folder / "said"
    with streams_into(said):
        run = servers.start(seat, side, FUNCTION, words, folder)
        assert isinstance(run, ForkedRun)
        assert run.wait() == 4
    text = said.read_text()
    said.unlink()
    return text


def test_a_server_outlives_the_folder_that_it_was_started_in(
    servers: RunServers, tmp_path: Path
) -> None:
    """As a commit's work tree, which is removed before the next commit is recorded."""
    tree = tmp_path / "tree"
    tree.mkdir()
    code = "print(hash('a'))"
    first = say(servers, tree, code, "reference")
    shutil.rmtree(tree)
    side = Installation("", Path(sys.executable), (tmp_path, tree))
    assert say(servers, tmp_path, code, "reference", side) == first


def test_the_sides_of_a_comparison_are_two_interpreters(
    servers: RunServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With other seeds of hashes and other addresses: what depends on them still differs."""
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    code = "import torch; print(hash('a'), id(torch))"
    candidate, reference = (
        say(servers, tmp_path, code, seat) for seat in ("candidate", "reference")
    )
    assert not {*candidate.split()} & {*reference.split()}


def test_what_needs_an_interpreter_of_its_own_is_not_forked(
    servers: RunServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank of a launch, another interpreter, and code of a commit that is imported already.

    A thread's child would end with the thread; without standard streams, Python has none either.
    """

    def started(side: Installation = HERE_AND_NOW) -> object:
        return servers.start("candidate", side, FUNCTION, ["record"], tmp_path)

    assert started(Installation("", tmp_path / "python")) is None
    with monkeypatch.context() as patch:
        patch.setenv("RANK", "0")
        assert started() is None
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(started()))
    thread.start()
    thread.join()
    assert found == [None]
    kept = os.dup(0)
    os.close(0)
    try:
        assert started() is None
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    imported = Path(os.__file__).parent
    assert started(Installation("", Path(sys.executable), (imported, tmp_path))) is None


# The last one, since others need a server with the usual surroundings.
def test_a_run_has_the_surroundings_of_its_command(
    servers: RunServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process takes over, or reads when it starts: no server with others is used."""
    code = "import os, torch; print(torch.get_num_threads(), os.environ['OTHER'], os.umask(0))"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("OTHER", "here")
    before = os.umask(0o027)
    try:
        assert say(servers, tmp_path, code).split() == ["1", "here", str(0o027)]
    finally:
        os.umask(before)
