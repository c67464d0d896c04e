"""Ranks of another commit or interpreter find there what their controller names here."""

from __future__ import annotations

import os
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from pytest_precision.errors import RevisionError
from pytest_precision.ranks.code.relocation import Relocation, folders_left


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """Return a repository with `src` and `new`, and a work tree without `new`."""
    for folder in ("mine/src", "mine/new", "tree/src"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path / "mine", tmp_path / "tree"


def test_files_of_the_repository_are_those_of_the_work_tree(places: tuple[Path, Path]) -> None:
    """Whether or not they are there; others stay."""
    root, tree = places
    there = Relocation("/package", places)
    assert there.path_of(str(root / "src" / "gone.py")) == str(tree / "src" / "gone.py")
    assert there.path_of("/opt/other.py") == "/opt/other.py"
    assert Relocation("/package").path_of(str(root / "a.py")) == str(root / "a.py")


def test_a_folder_that_the_commit_lacks_is_its_root(places: tuple[Path, Path]) -> None:
    """A rank must have a current folder."""
    root, tree = places
    there = Relocation("/package", places)
    assert there.folder_of(str(root / "src")) == str(tree / "src")
    assert there.folder_of(str(root / "new")) == str(tree)


def test_the_import_path_moves_and_this_package_comes_first(places: tuple[Path, Path]) -> None:
    """A folder that the commit lacks is left out."""
    root, tree = places
    path = ["/opt", str(root / "new"), str(root / "src"), str(root)]
    moved = Relocation("/package", places).import_path(path)
    assert moved == ["/package", "/opt", str(tree / "src"), str(tree)]


def test_installed_packages_stay_with_their_interpreter(places: tuple[Path, Path]) -> None:
    """Python's own folders, and each with the name of one for packages; nothing else."""
    root, _ = places
    own = folders_left()
    there = Relocation("/package", None, own)
    packages = str(root / "here" / "site-packages")
    path = [packages, os.path.dirname(os.__file__), *own, str(root / "src"), sys.prefix]
    assert there.import_path(path) == ["/package", str(root / "src"), sys.prefix]
    assert packages in Relocation("/package").import_path(path)


def test_a_module_that_is_compiled_here_alone_is_named(places: tuple[Path, Path]) -> None:
    """With the option that makes it; any other import that fails is left to its own error."""
    root, tree = places
    name = f"part{EXTENSION_SUFFIXES[0]}"
    (root / "src" / "inner").mkdir()
    (root / "src" / "inner" / name).touch()
    there, path = Relocation("/package", places), [str(root), str(root / "src")]
    missing = ModuleNotFoundError("no module", name="inner.part")
    with pytest.raises(RevisionError, match=r"inner\.part, .* precision_against_build=COMMAND"):
        there.expect_built(missing, path)
    there.expect_built(ModuleNotFoundError("no module", name="other"), path)
    there.expect_built(ImportError("no name"), path)
    (tree / "src" / "inner").mkdir()
    (tree / "src" / "inner" / name).touch()
    there.expect_built(missing, path)
