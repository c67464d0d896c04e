"""Each side of each check is compared with itself in another installation."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from repository import Repository
from sessions import LAYOUTS, cell_of, cells, run, run_here

FRAME = "import frame\n\n\ndef decayed(beta):\n    return beta * frame.FACTOR\n"


def install(folder: Path, version: str, factor: float) -> None:
    """Put a release of a framework into a folder of installed packages."""
    (folder / "frame.py").write_text(f"FACTOR = {factor}\n")
    told = folder / f"frame-{version}.dist-info"
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: frame\nVersion: {version}\n")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository whose layouts use a framework, with what differs from its commit."""
    made = Repository(tmp_path / "mine")
    (made.root / "pytest.ini").write_text("[pytest]\npythonpath = src\n")
    (made.root / ".gitignore").write_text("__pycache__/\nreport/\n")
    layouts = LAYOUTS.format(own=0.9, shared=0.95)
    made.commit("one", src__mine__layouts=layouts, src__helpers=FRAME)
    made.write(test_drift=cell_of("drift", "shared", "shared_too"))
    return made


@pytest.fixture
def here(tmp_path: Path) -> str:
    """Return a folder of packages of this interpreter, which has release 1 of the framework."""
    folder = tmp_path / "here" / "site-packages"
    folder.mkdir(parents=True)
    install(folder, "1.0", 1.0)
    return str(folder)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return an interpreter that has release 2 of the framework, and this one's other packages."""
    environment = tmp_path / "there"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = environment / "lib" / version / "site-packages"
    # Not what is installed from checkouts, such as this package.
    (packages / "others.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    install(packages, "2.0", 0.5)
    return environment / "bin" / "python"


def test_another_release_is_drift_and_named(
    repository: Repository, here: str, python: Path
) -> None:
    """Both sides move with it, which is reported or fails."""
    options = f"--precision-against-python={python}", "--precision-drift=report"
    done = run(repository, *options, PYTHONPATH=here)
    found = cells(repository)["test_drift"]
    assert (found["outcome"], found["status"]) == ("drift", "partial"), done.stdout
    assert done.returncode == 0
    said = f"both sides moved since {python} and still agree"
    assert said in found["reason"]
    assert said in " ".join(done.stdout.split())
    assert found["then"]["environment"]["frame"] == ["1.0", "2.0"]
    assert {*found["then"]["moved"]} == {"candidate", "reference"}


@pytest.mark.nightly
def test_a_commit_and_an_interpreter_combine(
    repository: Repository, here: str, python: Path
) -> None:
    """What the commit had otherwise can undo what the installation does."""
    repository.commit("two", src__helpers=FRAME.replace("frame.FACTOR", "frame.FACTOR * 2"))
    repository.write(src__helpers=FRAME)
    options = f"--precision-against-python={python}", "--precision-against=HEAD"
    done = run(repository, *options, PYTHONPATH=here)
    found = cells(repository)["test_drift"]
    assert found["outcome"] == "pass", done.stdout
    assert found["then"]["name"].endswith(f" with {python}")
    assert repository.trees() == 1


def test_what_an_interpreter_lacks_is_named_first(
    repository: Repository, pytester: pytest.Pytester, tmp_path: Path
) -> None:
    """With the command that installs it."""
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    done = run_here(repository, pytester, f"--precision-against-python={bare}")
    said = str(done.stderr)
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    assert f"in --precision-against-python={bare} but got no torch, no numpy" in said
    assert os.fspath(bare) + " -m pip install torch numpy pytest xxhash safetensors" in said
