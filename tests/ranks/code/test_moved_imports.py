"""What a script imports from its repository comes from the commit, or is refused."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

from pytest_precision.errors import RevisionError
from pytest_precision.ranks.code.relocation import PACKAGE, expect_moved, move_imports


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return a repository and a work tree of it, which has no `new`."""
    for folder in ("mine/src/part", "mine/new", "tree/src/part"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path / "mine", tmp_path / "tree"


def test_paths_in_the_repository_move(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other paths stay; a folder that the commit lacks goes, since it has this side's code."""
    root, tree = places
    monkeypatch.setattr(sys, "path", ["/usr/lib", str(root / "src"), str(root / "new"), str(root)])
    monkeypatch.setenv("PYTHONPATH", f"/opt{os.pathsep}{root / 'src'}")
    move_imports(root, tree)
    assert sys.path == ["/usr/lib", str(tree / "src"), str(tree)]
    assert os.environ["PYTHONPATH"] == f"/opt{os.pathsep}{tree / 'src'}"


def test_an_environment_in_the_repository_stays(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`.venv` is no code of the repository."""
    root, tree = places
    packages = root / ".venv" / "lib" / "site-packages"
    packages.mkdir(parents=True)
    monkeypatch.setattr(sys, "prefix", str(root / ".venv"))
    monkeypatch.setattr(sys, "path", [str(packages)])
    move_imports(root, tree)
    assert sys.path == [str(packages)]


def test_editable_installs_move(places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """For this process in the finder, for others in PYTHONPATH."""
    root, tree = places
    name = "__editable___mine_0_1_finder"
    finder = ModuleType(name)
    mapping = {"part": str(root / "src" / "part"), "new": str(root / "new"), "other": "/opt/other"}
    vars(finder).update(MAPPING=mapping, NAMESPACES={})
    monkeypatch.setitem(sys.modules, name, finder)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delenv("PYTHONPATH", raising=False)
    move_imports(root, tree)
    assert mapping == {"part": str(tree / "src" / "part"), "other": "/opt/other"}
    assert os.environ["PYTHONPATH"] == str(tree / "src")


def test_a_module_of_this_side_is_refused(
    places: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is named with its file; those of the work tree are right."""
    root, tree = places
    good, bad = ModuleType("good"), ModuleType("bad")
    good.__file__, bad.__file__ = str(tree / "good.py"), str(root / "bad.so")
    monkeypatch.setitem(sys.modules, "good", good)
    expect_moved(root, tree)
    monkeypatch.setitem(sys.modules, "bad", bad)
    with pytest.raises(RevisionError, match=r"module bad from .*/mine/bad\.so"):
        expect_moved(root, tree)


def test_this_package_may_lie_in_the_repository(tmp_path: Path) -> None:
    """Its code is the same on both sides: it compares, and is not compared."""
    expect_moved(PACKAGE, tmp_path)
