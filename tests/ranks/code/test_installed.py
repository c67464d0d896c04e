"""What is installed code, and what the user's own, wherever both lie."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from pytest_precision.ranks.code.installed import is_installed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the import path with one package, `planted`."""
    found = tmp_path / "somewhere"
    (found / "planted").mkdir(parents=True)
    (found / "planted" / "__init__.py").touch()
    monkeypatch.syspath_prepend(found)
    return found


def of(folder: Path) -> str:
    return str(folder / "planted" / "__init__.py")


def record(folder: Path, *files: str) -> Path:
    """Leave what an installer leaves of a package."""
    info = folder / "planted-1.0.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: planted\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{file},sha256=abc,0\n" for file in files))
    return info


@pytest.mark.parametrize("name", ["torch", "numpy", "pytest", "json", "pytest_precision.errors"])
def test_what_an_environment_comes_with_is_installed(name: str) -> None:
    """Python, torch, its neighbours and this package, which may be a checkout."""
    file = importlib.import_module(name).__file__
    assert file is not None
    assert is_installed(file)


@pytest.mark.parametrize("name", ["site-packages", "dist-packages"])
def test_a_folder_for_packages_on_the_import_path_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By its name, as one that a `.pth` file or PYTHONPATH adds; not before it is added."""
    file = str(tmp_path / name / "planted" / "__init__.py")
    assert not is_installed(file)
    monkeypatch.syspath_prepend(tmp_path / name)
    assert is_installed(file)


def test_what_an_installer_has_recorded_is_installed(folder: Path) -> None:
    """In whatever folder; and not what lies beside it."""
    record(folder, "planted/__init__.py")
    assert is_installed(of(folder))
    assert not is_installed(str(folder / "planted" / "own.py"))
    assert not is_installed(str(folder / "test_own.py"))


def test_a_project_with_what_builds_leave_in_it_is_the_users_own(folder: Path) -> None:
    """An editable install's `egg-info`, a build's `dist-info`, and one that records no source."""
    egg = folder / "planted.egg-info"
    egg.mkdir()
    (egg / "SOURCES.txt").write_text("planted/__init__.py\n")
    (egg / "top_level.txt").write_text("planted\n")
    assert not is_installed(of(folder))


@pytest.mark.parametrize("files", [None, ("__editable__.planted-1.0.pth",)])
def test_a_project_with_a_dist_info_of_its_own_is_the_users_own(
    folder: Path, files: tuple[str, ...] | None
) -> None:
    """A build's, which has no record; and an editable install's, which records no source."""
    info = record(folder, *(files or ()))
    (info / "top_level.txt").write_text("planted\n")
    if files is None:
        (info / "RECORD").unlink()
    assert not is_installed(of(folder))


def test_a_link_is_where_it_leads(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A project that is linked into a folder for packages is still the user's own."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    (packages / "planted").symlink_to(folder / "planted")
    assert not is_installed(of(packages))
    (tmp_path / "link").symlink_to(packages)
    (packages / "real.py").touch()
    assert is_installed(str(tmp_path / "link" / "real.py"))


def test_a_linked_package_is_installed_by_its_record(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some installers link each package into an environment from a cache."""
    packages = tmp_path / "site-packages"
    packages.mkdir()
    monkeypatch.syspath_prepend(packages)
    (packages / "planted").symlink_to(folder / "planted")
    record(packages, "planted/__init__.py")
    assert is_installed(of(packages))


TORCH = """
import sys
from pytest_precision.ranks.code.installed import is_installed
print(*(is_installed(f"{sys.path[0]}/{file}") for file in ("torch/nn/__init__.py", "test_own.py")))
"""


def test_torch_in_its_checkout_is_installed_and_its_tests_are_not(tmp_path: Path) -> None:
    """Torch's own developers test what lies beside it."""
    (tmp_path / "torch" / "nn").mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "script.py").write_text(TORCH)
    around = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    found = subprocess.run(
        [sys.executable, str(tmp_path / "script.py")], env=around, capture_output=True, text=True
    )
    assert found.stdout == "True False\n", found.stderr


def test_the_interpreters_prefix_is_not_installed_as_a_whole() -> None:
    """It may be `/usr`, where containers keep the user's code in `/usr/src`."""
    assert not is_installed(os.path.join(sysconfig.get_path("data"), "src", "own.py"))
