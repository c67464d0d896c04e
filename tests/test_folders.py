"""OwnFolder: what is left of a process that was killed goes with the next one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_precision import _folders
from pytest_precision.__main__ import main
from pytest_precision._folder_owners import LOCK, Owner, keep, remove_of, sweep
from pytest_precision._folders import OwnFolder, SharedFolder

KILLED = """\
import os, signal, sys
from pytest_precision._folders import OwnFolder
folder = OwnFolder("left-", sys.argv[1]).path
(folder / "file").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left(tmp_path):
    """The folder of a process that has just been killed."""
    command = [sys.executable, "-c", KILLED, tmp_path]
    assert subprocess.run(command, cwd=Path(__file__).parents[1]).returncode == -9
    [folder] = tmp_path.iterdir()
    return folder


def test_what_a_killed_process_left_goes(tmp_path, left):
    """With all in it, when the next folder is made there."""
    mine = OwnFolder("", str(tmp_path))
    assert [*tmp_path.iterdir()] == [mine.path]
    mine.close()
    mine.close()
    assert not [*tmp_path.iterdir()]


def test_every_command_removes_what_a_killed_one_has_left(tmp_path, left, monkeypatch):
    """Recordings of a `diff` that was killed may be large, and no session need follow."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "nosuch", "neither"])
    assert not left.exists()


def test_what_somebody_has_stays(tmp_path):
    """However old it is."""
    with OwnFolder("", str(tmp_path)) as mine:
        keep(mine, -86400)
        sweep(str(tmp_path))
        assert mine.exists()


@pytest.mark.parametrize(
    ("name", "owner"),
    [("notes", "Jane\n"), ("notes", "a\nb\nc"), ("gone-wild", None), ("gone-" + 17 * "0", "Jane")],
)
def test_what_somebody_called_alike_stays(tmp_path, name, owner):
    """A name that begins as ours tells nothing; an owner's file, or a whole name, does."""
    theirs = tmp_path / f"pytest-precision-{name}"
    theirs.mkdir()
    (theirs / "thesis").touch()
    if owner is not None:
        (theirs / LOCK).write_text(owner)
    before = sorted(theirs.iterdir())
    sweep(str(tmp_path))
    remove_of(os.getpid(), {str(tmp_path)})
    assert sorted(theirs.iterdir()) == before


def test_what_is_kept_stays_until_then(tmp_path, left):
    """Its lock is free, and others may look into it; afterwards it goes."""
    keep(left, 60)
    sweep(str(tmp_path))
    assert left.exists()
    keep(left, 0)
    sweep(str(tmp_path))
    assert not left.exists()


SWEEPS = """\
import sys
from pytest_precision._folder_owners import sweep
print("begun", flush=True)
while True:
    sweep(sys.argv[1])
"""


@contextmanager
def another_sweeps(folder):
    """Have another process sweep a folder, all the time until the block ends."""
    words = [sys.executable, "-c", SWEEPS, str(folder)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(words, cwd=root, stdout=subprocess.PIPE) as sweeper:
        try:
            assert sweeper.stdout.readline() == b"begun\n"
            yield
            assert sweeper.poll() is None
        finally:
            sweeper.kill()


def test_nobody_takes_a_folder_that_is_just_made(tmp_path):
    """Its owner file appears with its lock, so that others that sweep all the time leave it."""
    with another_sweeps(tmp_path):
        for _ in range(300):
            with OwnFolder("", str(tmp_path)) as mine:
                (mine / "file").touch()
                assert mine.exists()


SHARES = """\
import sys, tempfile, time
tempfile.tempdir = sys.argv[1]
from pytest_precision._folders import SharedFolder
for k in range(int(sys.argv[2])):
    folder = SharedFolder("shared")
    (folder.path / sys.argv[3]).touch()
    assert folder.path.exists()
print("there", flush=True)
time.sleep(60)
"""


def test_what_several_share_goes_with_the_last(tmp_path, monkeypatch):
    """However young it is; while one of them lives it stays."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    words = [sys.executable, "-c", SHARES, str(tmp_path)]
    settings = {"cwd": Path(__file__).parents[1], "stdout": subprocess.PIPE}
    shared = [subprocess.Popen([*words, "20", str(k)], **settings) for k in range(2)]
    try:
        assert [process.stdout.readline() for process in shared] == [b"there\n"] * 2
        [folder] = tmp_path.iterdir()
        for process, stays in zip(shared, (True, False), strict=True):
            process.kill()
            process.wait()
            sweep(str(tmp_path))
            assert folder.exists() is stays
    finally:
        for process in shared:
            process.kill()
            process.communicate()


def test_a_shared_folder_that_others_take_for_left(tmp_path, monkeypatch):
    """Whoever makes it while others sweep has it in the end."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _folders.sweep_temporary_folder()
    with another_sweeps(tmp_path):
        for _ in range(100):
            shared = SharedFolder("shared")
            (shared.path / "file").touch()
            assert (shared.path / "file").exists()
            shared.let_go()


def test_what_is_not_ours_stays(tmp_path, left):
    """Other names, folders without an owner's file, links."""
    (tmp_path / "pytest-precision-bare").mkdir()
    left.rename(tmp_path / "other")
    (tmp_path / "pytest-precision-link").symlink_to(tmp_path / "other")
    sweep(str(tmp_path))
    assert len([*tmp_path.iterdir()]) == 3
    assert (tmp_path / "other" / "file").exists()


@pytest.mark.parametrize(("days", "holds"), [(2, []), (0.5, ["bare"]), (2, ["bare", "file"])])
def test_an_old_folder_without_an_owner_goes_if_it_is_empty(tmp_path, days, holds):
    """Its maker was killed before it had signed; nobody says whose a full one is."""
    bare = tmp_path / "pytest-precision-bare"
    bare.mkdir()
    if "file" in holds:
        (bare / "file").touch()
    elif days > 1:
        (bare / f"{LOCK}.0f0f").touch()
    then = time.time() - days * 86400
    os.utime(bare, (then, then))
    sweep(str(tmp_path))
    left = [path.name.removeprefix("pytest-precision-") for path in tmp_path.rglob("*")]
    assert sorted(left) == holds


def test_a_forked_child_removes_nothing(tmp_path):
    """It has not made the folder."""
    mine = OwnFolder("", str(tmp_path))
    child = os.fork()
    if child == 0:
        mine.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert mine.path.exists()
    mine.close()


@pytest.mark.parametrize(
    ("machine", "boot", "goes"),
    [
        ("here", "now", True),
        ("here", "before", True),
        ("there", "now", True),
        ("there", "another", False),
    ],
)
def test_what_another_machine_has_stays(tmp_path, left, machine, boot, goes):
    """Its locks need not be seen here; of a machine that has started again nobody is left."""
    own = Owner.here()
    machine = own.machine if machine == "here" else "there"
    boot = own.boot if boot == "now" else boot
    (left / LOCK).write_text(str(Owner(machine, boot, own.process)))
    sweep(str(tmp_path))
    assert left.exists() is not goes


def test_who_outlives_a_process_buries_what_it_left(tmp_path, left):
    """However long it would be kept, and nothing else."""
    owner = Owner.of(left)
    assert owner is not None
    keep(left, 60)
    with OwnFolder("", str(tmp_path)) as mine:
        remove_of(owner.process + 1, {str(tmp_path)})
        assert left.exists()
        remove_of(owner.process, {str(tmp_path)})
        assert [*tmp_path.iterdir()] == [mine]


def test_nobody_buries_what_a_living_process_has(tmp_path):
    """As its lock says; who tries gives up in time."""
    with OwnFolder("", str(tmp_path)) as mine:
        remove_of(os.getpid(), {str(tmp_path)})
        assert mine.exists()


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_somebody_has_removed(tmp_path, again):
    """Its owner makes it anew, which is another one than somebody else has made."""
    mine = OwnFolder("", str(tmp_path))
    assert mine.present
    assert not mine.restore()
    shutil.rmtree(mine.path)
    if again:
        (mine.path).mkdir()
    assert not mine.present
    assert mine.restore()
    assert mine.present
    mine.close()
    assert not [*tmp_path.iterdir()]


KILLED_AS_IT_REMOVES = """\
import os, shutil, signal, sys
from pytest_precision._folder_owners import LOCK
from pytest_precision._folders import OwnFolder
def removing(folder, **options):
    (folder / LOCK).unlink()
    os.kill(os.getpid(), signal.SIGKILL)
folder = OwnFolder("left-", sys.argv[1])
shutil.rmtree = removing
folder.close()
"""


@pytest.mark.parametrize("finish", [lambda parent: remove_of(1, {parent}), sweep])
def test_who_is_killed_as_it_removes_a_folder(tmp_path, finish):
    """Others go on with it, although it no longer says whose it was."""
    command = [sys.executable, "-c", KILLED_AS_IT_REMOVES, tmp_path]
    assert subprocess.run(command, cwd=Path(__file__).parents[1]).returncode == -9
    [left] = tmp_path.iterdir()
    assert not [*left.iterdir()]
    finish(str(tmp_path))
    assert not left.exists()
