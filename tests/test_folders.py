"""OwnFolder: what is left of a process that was killed goes with the next one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_precision._folder_owners import LOCK, YOUNG_SECONDS, Owner, remove_of, sweep
from pytest_precision._folders import OwnFolder

KILLED = """\
import os, signal, sys
from pytest_precision._folders import OwnFolder
folder = OwnFolder("left-", sys.argv[1]).path
(folder / "file").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def left(tmp_path):
    """The folder of a process that was killed some time ago."""
    command = [sys.executable, "-c", KILLED, tmp_path]
    assert subprocess.run(command, cwd=Path(__file__).parents[1]).returncode == -9
    [folder] = tmp_path.iterdir()
    grow_old(folder)
    return folder


def grow_old(folder: Path) -> None:
    then = (folder / LOCK).stat().st_mtime - 2 * YOUNG_SECONDS
    os.utime(folder / LOCK, (then, then))


def test_what_a_killed_process_left_goes(tmp_path, left):
    """With all in it, when the next folder is made there."""
    mine = OwnFolder("", str(tmp_path))
    assert [*tmp_path.iterdir()] == [mine.path]
    mine.close()
    mine.close()
    assert not [*tmp_path.iterdir()]


def test_what_somebody_has_stays(tmp_path):
    """However old it is."""
    with OwnFolder("", str(tmp_path)) as mine:
        grow_old(mine)
        sweep(str(tmp_path))
        assert mine.exists()


def test_what_is_young_stays(tmp_path, left):
    """Its owner may be about to lock it."""
    (left / LOCK).touch()
    sweep(str(tmp_path))
    assert left.exists()


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
    """Its maker was killed before it could sign; nobody says whose a full one is."""
    bare = tmp_path / "pytest-precision-bare"
    bare.mkdir()
    if "file" in holds:
        (bare / "file").touch()
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
    grow_old(left)
    sweep(str(tmp_path))
    assert left.exists() is not goes


def test_who_outlives_a_process_buries_what_it_left(tmp_path, left):
    """However young it is, and nothing else."""
    owner = Owner.of(left)
    assert owner is not None
    (left / LOCK).touch()
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
