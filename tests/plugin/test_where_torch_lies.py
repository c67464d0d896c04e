"""Sessions of the example repository where torch is not in the interpreter's own folders."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from slack import START, slack

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "fixtures" / "downstream"
SHARDING = str(EXAMPLES / "test_sharding.py")
PACKAGES = Path(sysconfig.get_path("purelib"))

Found = tuple[str, str]
"""An interpreter, and its PYTHONPATH."""


def on_pythonpath(folder: Path) -> Found:
    """The packages of another environment, as of a cluster's module."""
    return sys._base_executable, f"{PACKAGES}:{ROOT}"  # type: ignore[attr-defined]


def by_a_pth_file(folder: Path) -> Found:
    """An environment that adds the packages of another one, as `uv run --with` makes it."""
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    file = folder / "venv" / "lib" / version / "site-packages" / "another.pth"
    file.write_text(f"{PACKAGES}\n{ROOT}\n")
    return str(folder / "venv" / "bin" / "python"), ""


def in_a_target(folder: Path) -> Found:
    """A folder with the name that the user gave it, as `pip install --target` makes it."""
    (folder / "wheels").mkdir()
    for package in PACKAGES.iterdir():
        if package.suffix != ".pth":
            (folder / "wheels" / package.name).symlink_to(package)
    return sys._base_executable, f"{folder / 'wheels'}:{ROOT}"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "place",
    [
        on_pythonpath,
        pytest.param(by_a_pth_file, marks=pytest.mark.nightly),
        pytest.param(in_a_target, marks=pytest.mark.nightly),
    ],
)
def test_no_job_leaks_wherever_torch_lies(place: Callable[[Path], Found], tmp_path: Path) -> None:
    """What torch and its neighbours keep for themselves is no state that a job left behind."""
    interpreter, path = place(tmp_path)
    strict = ["-o", "precision_strict_isolation=true"]
    options = [*strict, "--precision-coverage=smoke", "--precision-matrix"]
    plugins = ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
    command = [interpreter, "-m", "pytest", *options, *plugins, SHARDING]
    around = {"PATH": "/usr/bin:/bin", "PYTHONPATH": path, "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        command, env=around, cwd=tmp_path, capture_output=True, text=True, timeout=START + slack()
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "PrecisionLeakWarning" not in ended.stdout
